//! Cookies of a browser: the session, which no script can read, and the seed of form tokens before signing in. The API key is
//! sent once, to sign in, and is not stored in a cookie.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cookie::{Cookie, SameSite};
use redrive_wire::session::TOKEN_PREFIX;
use sha2::{Digest as _, Sha256};

use crate::error::PageError;

/// The cookie with the session token. Every node accepts it, because sessions are records of the store.
const SESSION_COOKIE: &str = "redrive_session";
/// The cookie with the seed of form tokens.
const SEED_COOKIE: &str = "redrive_seed";
/// The cookie in which earlier versions stored the API key.
const OLD_KEY_COOKIE: &str = "redrive_key";
/// Prefix of the input of a form token.
const FORM_LABEL: &[u8] = b"redrive console form 2\0";

/// Returns the session token of a request.
pub(crate) fn session_token(headers: &HeaderMap) -> Option<String> {
    cookie_value(headers, SESSION_COOKIE).filter(|token| token.starts_with(TOKEN_PREFIX))
}

/// A random value in a cookie. Form tokens are derived from it while there is no session.
#[derive(Debug, Clone)]
pub(crate) struct FormSeed(String);

/// Returns the token that a form must contain. It is derived from the session, so that every node knows it, or from the seed.
pub(crate) fn form_token(session: Option<&str>, seed: &FormSeed) -> String {
    let secret = session.unwrap_or(&seed.0);
    hex::encode(Sha256::new().chain_update(FORM_LABEL).chain_update(secret).finalize())
}

/// Gives every browser a seed, and every request a `Host` header, which HTTP/2 does not have.
pub(crate) async fn ensure_seed(mut request: Request, next: Next) -> Response {
    let authority = request.uri().authority().and_then(|host| HeaderValue::try_from(host.as_str()).ok());
    if let Some(host) = authority {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    if let Some(seed) = cookie_value(request.headers(), SEED_COOKIE).filter(|seed| is_seed(seed)) {
        request.extensions_mut().insert(FormSeed(seed));
        return next.run(request).await;
    }
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        return PageError::unreadable_answer(&error).into_response();
    }
    let (seed, secure) = (hex::encode(random), is_https(&request));
    request.extensions_mut().insert(FormSeed(seed.clone()));
    let mut response = next.run(request).await;
    response.headers_mut().append(header::SET_COOKIE, set_cookie(SEED_COOKIE, seed, secure));
    response
}

/// Lets a browser read the API, mainly the event stream, with the session in its cookie. Requests that change something need a
/// key in a header, which another site cannot make a browser send.
pub(crate) async fn authorize_reads(mut request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let has_key = headers.contains_key(header::AUTHORIZATION) || headers.contains_key("x-api-key");
    if is_read
        && !has_key
        && let Some(token) = session_token(headers)
        && let Ok(mut bearer) = HeaderValue::try_from(format!("Bearer {token}"))
    {
        bearer.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
    }
    next.run(request).await
}

/// Stores a session in the browser until it is closed.
pub(crate) fn set_session_cookie(token: String, secure: bool) -> HeaderValue {
    set_cookie(SESSION_COOKIE, token, secure)
}

/// Removes the session from the browser.
pub(crate) fn remove_session_cookie() -> HeaderValue {
    remove_cookie(SESSION_COOKIE)
}

/// Removes the API key that earlier versions stored in a cookie.
pub(crate) fn remove_old_key_cookie() -> HeaderValue {
    remove_cookie(OLD_KEY_COOKIE)
}

/// Whether the browser uses TLS, to this service or to a proxy in front of it.
pub(crate) fn is_https(request: &Request) -> bool {
    let forwarded = request.headers().get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    let first = forwarded.and_then(|list| list.split(',').next()).map(str::trim);
    first.is_some_and(|proto| proto.eq_ignore_ascii_case("https"))
        || request.uri().scheme_str() == Some("https")
}

fn set_cookie(name: &'static str, value: String, secure: bool) -> HeaderValue {
    let cookie = Cookie::build((name, value)).path("/").http_only(true).same_site(SameSite::Strict);
    header_value(&cookie.secure(secure).build())
}

fn remove_cookie(name: &'static str) -> HeaderValue {
    let cookie = Cookie::build(name).path("/").http_only(true).same_site(SameSite::Strict);
    header_value(&cookie.max_age(cookie::time::Duration::ZERO).build())
}

/// Names and values come from this file, from the API or from `hex`, and are valid in a header.
fn header_value(cookie: &Cookie<'_>) -> HeaderValue {
    HeaderValue::try_from(cookie.to_string()).unwrap_or_else(|_| HeaderValue::from_static("invalid="))
}

fn is_seed(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn cookie_value(headers: &HeaderMap, name: &str) -> Option<String> {
    let lists = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut cookies = lists.flat_map(Cookie::split_parse).filter_map(Result::ok);
    cookies.find(|cookie| cookie.name() == name).map(|cookie| cookie.value().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        let cookies = "xredrive_session=no; a=b; redrive_session=rds_1_2; redrive_key=rdk_1_2";
        headers.append(header::COOKIE, cookies.parse().unwrap());
        assert_eq!(session_token(&headers).as_deref(), Some("rds_1_2"));
        assert_eq!(cookie_value(&headers, "session"), None);
        let mut old = HeaderMap::new();
        old.append(header::COOKIE, "redrive_session=rdk_1_2".parse().unwrap());
        assert_eq!(session_token(&old), None, "an API key is not a session");
    }

    #[test]
    fn cookies_are_for_this_site_and_not_for_scripts() {
        let set = set_session_cookie("rds_1_2".to_owned(), true);
        assert_eq!(set, "redrive_session=rds_1_2; HttpOnly; SameSite=Strict; Secure; Path=/");
        let plain = set_session_cookie("rds_1_2".to_owned(), false);
        assert_eq!(plain, "redrive_session=rds_1_2; HttpOnly; SameSite=Strict; Path=/");
        assert_eq!(remove_session_cookie(), "redrive_session=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0");
    }

    #[test]
    fn a_form_token_does_not_reveal_the_session_and_differs_for_each() {
        let seed = FormSeed("5".repeat(64));
        let tokens =
            [form_token(Some("rds_a_b"), &seed), form_token(Some("rds_a_c"), &seed), form_token(None, &seed)];
        assert!(tokens.iter().all(|token| token.len() == 64 && !token.contains("rds")));
        assert!(tokens[0] != tokens[1] && tokens[0] != tokens[2]);
    }
}
