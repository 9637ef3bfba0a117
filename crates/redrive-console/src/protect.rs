//! What keeps other sites out: headers on every page, and two checks on every form.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq as _;

use crate::trouble::Trouble;

/// Nothing from elsewhere is loaded, nothing inline runs, nobody frames these pages.
pub(crate) const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Puts what every page carries onto an answer.
pub(crate) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // Forms of this console name where they came from; other sites learn nothing.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Refuses a form that another site has sent, or that was not made for this browser.
pub(crate) fn check_form(headers: &HeaderMap, expected: &str, token: Option<&str>) -> Result<(), Trouble> {
    check_origin(headers)?;
    let same = token.is_some_and(|token| token.as_bytes().ct_eq(expected.as_bytes()).into());
    if same {
        return Ok(());
    }
    Err(Trouble::Forged("It was not made for you by this console, or your sign-in has changed since it was."))
}

/// Browsers name the origin of every form they send. A proxy may have changed the host, and says so.
fn check_origin(headers: &HeaderMap) -> Result<(), Trouble> {
    let foreign = || Trouble::Forged("It came from another site than this console.");
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("origin") {
        Some(origin) => {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            let host = host.ok_or_else(foreign)?;
            let ours = [text("host"), text("x-forwarded-host")];
            let known = ours.into_iter().flatten().any(|our| our.eq_ignore_ascii_case(host));
            if known { Ok(()) } else { Err(foreign()) }
        }
        None if text("sec-fetch-site") == Some("same-origin") => Ok(()),
        None => Err(Trouble::Forged(
            "Its origin is missing: a browser names it, so this did not come from a page of this console.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pairs: &[(&'static str, &'static str)], token: Option<&str>, passes: bool) {
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        assert_eq!(check_form(&headers, "t", token).is_ok(), passes, "{pairs:?} {token:?}");
    }

    #[test]
    fn a_form_passes_from_here_with_its_token_only() {
        let here = [("host", "a:7"), ("origin", "http://a:7")];
        check(&here, Some("t"), true);
        check(&here, Some("u"), false);
        check(&here, None, false);
        check(&[("host", "a:7"), ("origin", "http://b:7")], Some("t"), false);
        check(&[("host", "a:7"), ("origin", "http://a:8")], Some("t"), false);
        check(&[("host", "a:7"), ("origin", "null")], Some("t"), false);
        check(&[("host", "a:7")], Some("t"), false);
        check(&[("host", "a:7"), ("sec-fetch-site", "same-origin")], Some("t"), true);
        check(&[("host", "a:7"), ("sec-fetch-site", "cross-site")], Some("t"), false);
        let proxied =
            [("host", "10.0.0.1"), ("x-forwarded-host", "ops.example"), ("origin", "https://ops.example")];
        check(&proxied, Some("t"), true);
    }
}
