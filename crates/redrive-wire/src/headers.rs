//! The names of HTTP headers that the service interprets.

/// Names the tenant that a request acts for: it sees and creates only jobs of that tenant. A key that is
/// bound to a tenant can name only that one.
pub const TENANT_HEADER: &str = "redrive-tenant";

/// Headers that a proxy adds to the requests that it forwards. A request with one of them may come from
/// another machine, whatever its `Host` says.
pub const FORWARDING_HEADERS: [&str; 24] = [
    "cdn-loop",
    "cf-connecting-ip",
    "cf-ray",
    "client-ip",
    "fastly-client-ip",
    "fly-client-ip",
    "forwarded",
    "forwarded-for",
    "true-client-ip",
    "via",
    "x-appengine-user-ip",
    "x-azure-clientip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-original-forwarded-for",
    "x-real-ip",
];
