//! What a form has sent, after the checks that keep other sites out. No page can read a form without them.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, Limited};

use crate::protect::check_form;
use crate::session::{self, Seed, form_token};
use crate::trouble::Trouble;

/// Bytes of a form: a page of ids and a policy are far below.
const FORM_BYTES_MAX: usize = 256 * 1024;

/// The fields of a form or of a query, in order; a name may come more than once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// The fields of a query, or of a form's body.
    pub(crate) fn parse(encoded: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The first field of this name without the blanks around it; none where it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let named = self.0.iter().find(|(found, _)| found == name);
        named.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// The same as a text of its own, empty where there is none.
    pub(crate) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// Every field of this name.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.0.iter().filter(|(found, _)| found == name);
        named.map(|(_, value)| value.trim()).collect()
    }

    /// A number, where one is given.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Trouble> {
        let parse = |text: &str| {
            text.replace([',', '_'], "")
                .parse()
                .map_err(|_| Trouble::Senseless(format!("{name}: {text:?} is not a number that fits here")))
        };
        self.get(name).map(parse).transpose()
    }
}

/// A form that this console made for this browser.
#[derive(Debug)]
pub(crate) struct Posted(pub(crate) Fields);

impl<S: Send + Sync> FromRequest<S> for Posted {
    type Rejection = Trouble;

    async fn from_request(request: Request, _: &S) -> Result<Self, Trouble> {
        let (parts, body) = request.into_parts();
        let fields = read(&parts.headers, body).await?;
        let missing = || Trouble::Forged("It came without what binds it to this browser.");
        let seed = parts.extensions.get::<Seed>().ok_or_else(missing)?;
        let expected = form_token(session::token(&parts.headers), seed);
        check_form(&parts.headers, &expected, fields.get("token"))?;
        Ok(Self(fields))
    }
}

async fn read(headers: &HeaderMap, body: Body) -> Result<Fields, Trouble> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return Err(Trouble::Forged("It is not sent as a form."));
    }
    let body = Limited::new(body, FORM_BYTES_MAX).collect().await;
    let body = body.map_err(|_| {
        Trouble::Senseless(format!(
            "a form has at most {FORM_BYTES_MAX} bytes, and comes without long pauses"
        ))
    })?;
    Ok(Fields::parse(&body.to_bytes()))
}
