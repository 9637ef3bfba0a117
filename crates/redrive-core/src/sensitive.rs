//! Names of headers, fields and parameters whose values are credentials.

/// Shown in place of a value that is a credential.
pub const MASK: &str = "***";
/// Parts of a name that mark its value as a credential. Encryption, the API and the console all use this list.
const SENSITIVE_PARTS: [&str; 25] = [
    "access-key",
    "access_key",
    "accesskey",
    "api-key",
    "api_key",
    "apikey",
    "assertion",
    "authenticat",
    "authoris",
    "authoriz",
    "bearer",
    "cookie",
    "credential",
    "functions-key",
    "jwt",
    "passphrase",
    "passw",
    "private-key",
    "private_key",
    "pwd",
    "secret",
    "session",
    "signature",
    "subscription-key",
    "token",
];

/// Returns whether a header, a field or a parameter of this name carries a credential.
///
/// ```
/// use redrive_core::sensitive::is_sensitive;
/// assert!(is_sensitive("Authorization") && is_sensitive("X-Auth") && is_sensitive("x-api-key"));
/// assert!(!is_sensitive("Content-Type") && !is_sensitive("author") && !is_sensitive("Idempotency-Key"));
/// ```
pub fn is_sensitive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SENSITIVE_PARTS.iter().any(|part| name.contains(part))
        || name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == "auth")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_recognised_by_the_name_of_its_header() {
        for (name, sensitive) in [
            ("Authorization", true),
            ("Proxy-Authorization", true),
            ("Cookie", true),
            ("Set-Cookie", true),
            ("X-Api-Key", true),
            ("apikey", true),
            ("X-Auth", true),
            ("X-Auth-User", true),
            ("X-Authentication", true),
            ("X-Amz-Security-Token", true),
            ("X-Vault-Token", true),
            ("X-Hub-Signature-256", true),
            ("X-Session-Id", true),
            ("X-Client-Secret", true),
            ("X-Password", true),
            ("Ocp-Apim-Subscription-Key", true),
            ("X-Goog-IAP-JWT-Assertion", true),
            ("Content-Type", false),
            ("Idempotency-Key", false),
            ("X-Author", false),
            ("Accept", false),
            ("traceparent", false),
        ] {
            assert_eq!(is_sensitive(name), sensitive, "{name}");
        }
    }
}
