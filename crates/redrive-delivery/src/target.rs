//! The target of a call: a normalised URL, and the origin by which gates and estimates are grouped.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use redrive_core::Invalid;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// The longest URL of a target in bytes, as written and as normalised.
pub const URL_BYTES_MAX: usize = 2048;

/// The scheme of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
    /// gRPC without TLS.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
}

impl Scheme {
    /// Its name in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Grpc => "grpc",
            Self::Grpcs => "grpcs",
        }
    }

    /// Whether calls are gRPC.
    pub fn is_grpc(self) -> bool {
        match self {
            Self::Grpc | Self::Grpcs => true,
            Self::Http | Self::Https => false,
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Http, Self::Https, Self::Grpc, Self::Grpcs]
            .into_iter()
            .find(|scheme| scheme.name().eq_ignore_ascii_case(name))
    }

    /// The default port.
    fn port(self) -> u16 {
        match self {
            Self::Http | Self::Grpc => 80,
            Self::Https | Self::Grpcs => 443,
        }
    }

    /// The HTTP scheme over which it is sent. URL parsers normalise hosts and ports for HTTP only.
    fn http_scheme(self) -> &'static str {
        match self {
            Self::Http | Self::Grpc => "http",
            Self::Https | Self::Grpcs => "https",
        }
    }
}

/// A URL that may be called: http, https, grpc or grpcs, without userinfo and fragment, with a normalised host.
///
/// ```
/// # use redrive_delivery::Target;
/// let target = Target::parse("HTTPS://Bücher.example:443/a/../b")?;
/// assert_eq!(target.to_string(), "https://xn--bcher-kva.example/b");
/// assert_eq!(target.origin().to_string(), "https://xn--bcher-kva.example:443");
/// # Ok::<(), redrive_core::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    scheme: Scheme,
    host: String,
    port: u16,
    uri: Uri,
}

impl Target {
    /// Parses a URL. The error names the field `target`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::parse_as("target", text)
    }

    /// Parses a URL. The error names the field `field`.
    pub fn parse_as(field: &'static str, text: &str) -> Result<Self, Invalid> {
        read(text).map_err(|problem| Invalid::new(field, problem))
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> Origin {
        let host = self.host.strip_suffix('.').unwrap_or(&self.host).to_owned();
        Origin { scheme: self.scheme, host, port: self.port }
    }

    /// The path, without the query.
    pub fn path(&self) -> &str {
        self.uri.path()
    }

    /// The URI that is sent; gRPC uses http or https.
    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (authority, path) = (self.uri.authority(), self.uri.path_and_query());
        let authority = authority.map_or("", |authority| authority.as_str());
        write!(f, "{}://{authority}{}", self.scheme.name(), path.map_or("/", |path| path.as_str()))
    }
}

impl FromStr for Target {
    type Err = Invalid;
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Target {
    type Error = Invalid;

    /// A stored target is normalised already, which is cheap to recognise. Anything else is parsed from scratch.
    fn try_from(text: String) -> Result<Self, Invalid> {
        read_normalised(&text).map_or_else(|| Self::parse(&text), Ok)
    }
}

/// Reads a target that `Display` wrote. Accepts only hosts of lower-case letters, digits, dots and hyphens, which have one spelling;
/// everything else, such as a host of digits and dots, is left to the parser.
fn read_normalised(text: &str) -> Option<Target> {
    let (name, rest) = text.split_once("://")?;
    let scheme = Scheme::from_name(name).filter(|scheme| scheme.name() == name)?;
    let authority = rest.split_once('/')?.0;
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0)?),
        None => (authority, scheme.port()),
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let named =
        host.rsplit('.').next().is_some_and(|last| last.starts_with(|c: char| c.is_ascii_lowercase()));
    if !host.bytes().all(plain) || !(named || host.parse::<std::net::Ipv4Addr>().is_ok()) {
        return None;
    }
    let uri = Uri::try_from(format!("{}://{rest}", scheme.http_scheme())).ok()?;
    Some(Target { scheme, host: host.to_owned(), port, uri })
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

/// Scheme, host and port. Calls to one origin share a gate and an estimate of their duration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    scheme: Scheme,
    host: String,
    port: u16,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme.name(), self.host, self.port)
    }
}

fn read(text: &str) -> Result<Target, String> {
    if text.len() > URL_BYTES_MAX {
        return Err(format!("must be at most {URL_BYTES_MAX} bytes long"));
    }
    let (scheme, rest) = split(text)?;
    // The parser normalises hosts for http only. A grpc URL is parsed as http, so that no spelling of a host is dialled that was
    // not normalised here.
    let url = Url::parse(&format!("{}://{rest}", scheme.http_scheme()))
        .map_err(|error| format!("is not a URL: {error}"))?;
    if url.fragment().is_some() {
        return Err("must not have a fragment".into());
    }
    let (host, port) = address(&url)?;
    if scheme.is_grpc() {
        check_grpc_path(&url)?;
    }
    if url.as_str().len() > URL_BYTES_MAX {
        return Err(format!("must be at most {URL_BYTES_MAX} bytes long once it is percent-encoded"));
    }
    let uri = Uri::try_from(url.as_str())
        .map_err(|error| format!("cannot be sent: {error}; percent-encode the path and query"))?;
    Ok(Target { scheme, host, port, uri })
}

/// Splits off the scheme. Refuses texts that URL parsers are known to read differently.
fn split(text: &str) -> Result<(Scheme, &str), String> {
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err("must not contain spaces, control characters or backslashes: percent-encode them".into());
    }
    let (name, rest) =
        text.split_once("://").ok_or("must begin with http://, https://, grpc:// or grpcs://")?;
    let scheme = Scheme::from_name(name).ok_or("must begin with http://, https://, grpc:// or grpcs://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err("must name a host".into());
    }
    if authority.contains('@') {
        return Err("must not contain a user or password: send an Authorization header".into());
    }
    Ok((scheme, rest))
}

fn address(url: &Url) -> Result<(String, u16), String> {
    let host = match url.host() {
        Some(Host::Domain(name)) if name.len() > 254 => return Err("has a host name that is too long".into()),
        Some(host) => host.to_string(),
        None => return Err("must name a host".into()),
    };
    match url.port_or_known_default() {
        Some(0) | None => Err("must have a port from 1 to 65535".into()),
        Some(port) => Ok((host, port)),
    }
}

fn check_grpc_path(url: &Url) -> Result<(), String> {
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
    };
    let mut parts = url.path().split('/').skip(1);
    let fits =
        parts.next().is_some_and(is_name) && parts.next().is_some_and(is_name) && parts.next().is_none();
    if fits && url.query().is_none() {
        return Ok(());
    }
    Err("must end in /package.Service/Method and nothing else, because it is a gRPC target".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_normalised() {
        for (text, normal, origin) in [
            ("http://example.com", "http://example.com/", "http://example.com:80"),
            ("HTTP://EXAMPLE.com:80/x?y=1", "http://example.com/x?y=1", "http://example.com:80"),
            ("https://example.com.:8443/", "https://example.com.:8443/", "https://example.com:8443"),
            ("http://0x7f.1/", "http://127.0.0.1/", "http://127.0.0.1:80"),
            ("grpc://0x7f.1:50051/a.B/C", "grpc://127.0.0.1:50051/a.B/C", "grpc://127.0.0.1:50051"),
            ("grpcs://2130706433/a.B/C", "grpcs://127.0.0.1/a.B/C", "grpcs://127.0.0.1:443"),
            ("grpc://EXAMPLE%2ecom/a.B/C", "grpc://example.com/a.B/C", "grpc://example.com:80"),
            ("http://[::ffff:127.0.0.1]:81/", "http://[::ffff:7f00:1]:81/", "http://[::ffff:7f00:1]:81"),
            ("http://bücher.example/", "http://xn--bcher-kva.example/", "http://xn--bcher-kva.example:80"),
        ] {
            let target = Target::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(target.to_string(), normal, "{text}");
            assert_eq!(target.origin().to_string(), origin, "{text}");
            assert_eq!(Target::parse(normal).unwrap(), target, "{text}");
        }
    }

    #[test]
    fn an_invalid_target_is_refused() {
        let long = format!("http://example.com/{}", "x".repeat(URL_BYTES_MAX));
        let long_once_encoded = format!("http://example.com/{}", "é".repeat(700));
        for text in [
            "",
            "example.com",
            "/path",
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://example.com/",
            "data:text/plain,x",
            "javascript://example.com/",
            "http:/example.com/",
            "http:example.com",
            "http:///example.com",
            "http://",
            "http://?x",
            "http://user@example.com/",
            "http://user:pass@example.com/",
            "http://:@example.com/",
            "http://@example.com/",
            "http://example.com\\@evil.example/",
            "http:\\\\example.com",
            "http://example.com/#fragment",
            "http://example.com/#",
            "http://example.com:0/",
            "http://example.com:65536/",
            "http://example.com:x/",
            " http://example.com/",
            "http://example.com/ ",
            "http://exa\nmple.com/",
            "http://example.com/\r\nHost: evil",
            "http://example.com/\t",
            "http://example.com/a b",
            "http://exa mple.com/",
            "http://example.com/\0",
            "http://[::1",
            "http://[::1%25eth0]/",
            "http://1.2.3.4.5/",
            "http://256.0.0.1/",
            "http://exa<mple.com/",
            "http://exa%00mple.com/",
            "grpc://example.com",
            "grpc://example.com/",
            "grpc://example.com/a.B",
            "grpc://example.com/a.B/",
            "grpc://example.com//C",
            "grpc://example.com/a.B/C/D",
            "grpc://example.com/a.B/C?x=1",
            "grpc://example.com/a.B/C%20",
            "grpc://user@example.com/a.B/C",
            &long,
            &long_once_encoded,
        ] {
            let error = Target::parse(text).expect_err(text);
            assert_eq!(error.field, "target", "{text}");
        }
    }

    #[test]
    fn an_error_names_the_field_of_the_target() {
        assert_eq!(Target::parse_as("onSuccessUrl", "x").unwrap_err().field, "onSuccessUrl");
    }
}
