//! Delivers HTTP and gRPC calls under a policy, without making an outage worse.
