//! Who a browser speaks for: a session of the API in a cookie that no script can read, and the seed of its forms. The API
//! key itself is sent once, to sign in, and is in no cookie.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use redrive_server::sessions::TOKEN_PREFIX;
use sha2::{Digest as _, Sha256};

use crate::trouble::Trouble;
use crate::words::hex;

/// The cookie with the token of the session. Every node accepts it, because sessions are records of the store.
const SESSION: &str = "redrive_session";
/// The cookie with what forms are bound to as long as there is no session.
const SEED: &str = "redrive_seed";
/// What a form's token is made from, beside the session or the seed.
const LABEL: &[u8] = b"redrive console form 2\0";

/// The token of the session in the cookies of a request.
pub(crate) fn token(headers: &HeaderMap) -> Option<&str> {
    cookie(headers, SESSION).filter(|token| token.starts_with(TOKEN_PREFIX))
}

/// What the forms of this browser are bound to, as long as it has no session.
#[derive(Debug, Clone)]
pub(crate) struct Seed(String);

/// The token that a form must bring: it follows from the session, so that every node knows it, or from a random cookie.
pub(crate) fn form_token(session: Option<&str>, seed: &Seed) -> String {
    let bound = Sha256::new().chain_update(LABEL).chain_update(session.unwrap_or(&seed.0)).finalize();
    hex(&bound)
}

/// Sees to it that a browser has a seed, and that its request names its host as HTTP/1 does.
pub(crate) async fn seed(mut request: Request, next: Next) -> Response {
    let named = request.uri().authority().and_then(|host| HeaderValue::try_from(host.as_str()).ok());
    if let Some(host) = named {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    if let Some(kept) = cookie(request.headers(), SEED).filter(|seed| is_seed(seed)).map(str::to_owned) {
        request.extensions_mut().insert(Seed(kept));
        return next.run(request).await;
    }
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        return Trouble::unreadable(&error).into_response();
    }
    let (fresh, secure) = (hex(&random), came_by_https(&request));
    request.extensions_mut().insert(Seed(fresh.clone()));
    let mut response = next.run(request).await;
    response.headers_mut().append(header::SET_COOKIE, set(SEED, &fresh, secure));
    response
}

/// Lets a browser look at the API itself with the session in its cookie: at events above all. What would change something
/// needs a key in a header, which no other site can make a browser send.
pub(crate) async fn lend(mut request: Request, next: Next) -> Response {
    let headers = request.headers();
    let looks = matches!(*request.method(), Method::GET | Method::HEAD);
    let has_own = headers.contains_key(header::AUTHORIZATION) || headers.contains_key("x-api-key");
    if looks
        && !has_own
        && let Some(token) = token(headers)
        && let Ok(mut bearer) = HeaderValue::try_from(format!("Bearer {token}"))
    {
        bearer.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
    }
    next.run(request).await
}

/// Makes a browser keep a session, until it is closed.
pub(crate) fn remembered(token: &str, secure: bool) -> HeaderValue {
    set(SESSION, token, secure)
}

/// Makes a browser forget its session.
pub(crate) fn forgotten() -> HeaderValue {
    HeaderValue::from_static("redrive_session=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
}

/// Makes a browser forget the API key that earlier versions kept in a cookie.
pub(crate) fn forgotten_key() -> HeaderValue {
    HeaderValue::from_static("redrive_key=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
}

/// Whether the browser speaks TLS, to this service or to a proxy before it.
pub(crate) fn came_by_https(request: &Request) -> bool {
    let forwarded = request.headers().get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    let first = forwarded.and_then(|list| list.split(',').next()).map(str::trim);
    first.is_some_and(|proto| proto.eq_ignore_ascii_case("https"))
        || request.uri().scheme_str() == Some("https")
}

fn set(name: &str, value: &str, secure: bool) -> HeaderValue {
    let secure = if secure { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).unwrap_or_else(|_| forgotten())
}

fn is_seed(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lists = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let pairs = lists.flat_map(|list| list.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut named = pairs.filter(|(found, _)| *found == name);
    named.next().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        let cookies = "xredrive_session=no; a=b; redrive_session=rds_1_2; redrive_key=rdk_1_2";
        headers.append(header::COOKIE, cookies.parse().unwrap());
        assert_eq!(token(&headers), Some("rds_1_2"));
        assert_eq!(cookie(&headers, "session"), None);
        let mut old = HeaderMap::new();
        old.append(header::COOKIE, "redrive_session=rdk_1_2".parse().unwrap());
        assert_eq!(token(&old), None, "an API key is no session");
    }

    #[test]
    fn a_token_says_nothing_of_the_session_and_differs_for_each() {
        let seed = Seed("5".repeat(64));
        let tokens =
            [form_token(Some("rds_a_b"), &seed), form_token(Some("rds_a_c"), &seed), form_token(None, &seed)];
        assert!(tokens.iter().all(|token| token.len() == 64 && !token.contains("rds")));
        assert!(tokens[0] != tokens[1] && tokens[0] != tokens[2]);
    }
}
