//! Forms: their fields, and the checks against forms of other sites. No page can read a form without these checks.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, Limited};
use subtle::ConstantTimeEq as _;

use crate::error::PageError;
use crate::session::{self, FormSeed, form_token};

/// The largest form. A page of ids or a policy is far smaller.
const FORM_BYTES_MAX: usize = 256 * 1024;

/// The fields of a form or of a query. A name may occur more than once.
#[derive(Debug, Clone, Default)]
pub(crate) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Parses a query or the body of a form.
    pub(crate) fn parse(encoded: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The first field of this name, trimmed. `None` if it is missing or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let named = self.0.iter().find(|(found, _)| found == name);
        named.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// The first field of this name, trimmed. Empty if it is missing.
    pub(crate) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// All fields of this name.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.0.iter().filter(|(found, _)| found == name);
        named.map(|(_, value)| value.trim()).collect()
    }

    /// The number in a field, if it is not empty.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, PageError> {
        let parse = |text: &str| {
            text.replace([',', '_'], "")
                .parse()
                .map_err(|_| PageError::InvalidInput(format!("{name}: {text:?} is not a valid number")))
        };
        self.get(name).map(parse).transpose()
    }
}

/// The fields of a form that this console made for this browser.
#[derive(Debug)]
pub(crate) struct VerifiedForm(pub(crate) FormFields);

impl<S: Send + Sync> FromRequest<S> for VerifiedForm {
    type Rejection = PageError;

    async fn from_request(request: Request, _: &S) -> Result<Self, PageError> {
        let (parts, body) = request.into_parts();
        let fields = read(&parts.headers, body).await?;
        let missing =
            || PageError::UntrustedForm("The request has no cookie that binds the form to this browser.");
        let seed = parts.extensions.get::<FormSeed>().ok_or_else(missing)?;
        let expected = form_token(session::session_token(&parts.headers).as_deref(), seed);
        check_form(&parts.headers, &expected, fields.get("token"))?;
        Ok(Self(fields))
    }
}

async fn read(headers: &HeaderMap, body: Body) -> Result<FormFields, PageError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return Err(PageError::UntrustedForm("The request is not a form."));
    }
    let body = Limited::new(body, FORM_BYTES_MAX).collect().await;
    let body = body.map_err(|_| {
        PageError::InvalidInput(format!(
            "the form is larger than {FORM_BYTES_MAX} bytes, or was sent too slowly"
        ))
    })?;
    Ok(FormFields::parse(&body.to_bytes()))
}

/// Rejects a form that another site sent, or that was not made for this browser.
fn check_form(headers: &HeaderMap, expected: &str, token: Option<&str>) -> Result<(), PageError> {
    check_origin(headers)?;
    let same = token.is_some_and(|token| token.as_bytes().ct_eq(expected.as_bytes()).into());
    if same {
        return Ok(());
    }
    Err(PageError::UntrustedForm(
        "The form was not made for this browser, or you have signed in or out since.",
    ))
}

/// Browsers send the origin of every form. A proxy that changed the host sends `x-forwarded-host`.
fn check_origin(headers: &HeaderMap) -> Result<(), PageError> {
    let foreign = || PageError::UntrustedForm("The form came from another site.");
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("origin") {
        Some(origin) => {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            let host = host.ok_or_else(foreign)?;
            let own_hosts = [text("host"), text("x-forwarded-host")];
            let is_own = own_hosts.into_iter().flatten().any(|own| own.eq_ignore_ascii_case(host));
            if is_own { Ok(()) } else { Err(foreign()) }
        }
        None if text("sec-fetch-site") == Some("same-origin") => Ok(()),
        None => Err(PageError::UntrustedForm(
            "The request has no origin, so it did not come from a page of this console.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn check(pairs: &[(&'static str, &'static str)], token: Option<&str>, passes: bool) {
        let headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        assert_eq!(check_form(&headers, "t", token).is_ok(), passes, "{pairs:?} {token:?}");
    }

    #[test]
    fn a_form_needs_its_origin_and_its_token() {
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
