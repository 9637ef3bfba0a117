//! The retry service: takes calls over HTTP from any language and has them delivered under a policy.
