//! Names that are also fixed words in a path: `GET /v1/policies/preview` shows the policy with the name `preview`.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use axum::middleware::map_request;
use axum::routing::{MethodFilter, on_service};
use utoipa::openapi::{OpenApi, PathItem};

use crate::api::Api;

/// Treats a fixed word as a name for the methods that its own path does not have: `POST /v1/policies/preview` previews a policy, and
/// `GET /v1/policies/preview` shows the policy `preview`.
pub(super) fn serve_words_as_names(
    router: Router<Arc<Api>>,
    document: &OpenApi,
    api: &Arc<Api>,
) -> Router<Arc<Api>> {
    let by_name: Router = router.clone().with_state(api.clone());
    words(document).into_iter().fold(router, |router, (path, methods)| {
        router.route(path, on_service(methods, by_name.clone()).route_layer(map_request(as_name)))
    })
}

/// The paths that end with a fixed word where another path has a parameter, with the methods that only the other path has.
fn words(document: &OpenApi) -> Vec<(&str, MethodFilter)> {
    let paths = &document.paths.paths;
    let mut words = Vec::new();
    for (path, item) in paths {
        let beside = paths.iter().find(|(other, _)| is_name_beside(other, path));
        let methods = beside.map(|(_, beside)| missing_methods(item, beside)).unwrap_or_default();
        if let Some(methods) = methods.into_iter().reduce(MethodFilter::or) {
            words.push((path.as_str(), methods));
        }
    }
    words
}

fn is_name_beside(template: &str, path: &str) -> bool {
    match (template.rsplit_once('/'), path.rsplit_once('/')) {
        (Some((under, name)), Some((folder, word))) => {
            under == folder && name.starts_with('{') && !word.starts_with('{')
        }
        (Some(_), None) | (None, _) => false,
    }
}

/// The methods of `other` that `item` does not have.
fn missing_methods(item: &PathItem, other: &PathItem) -> Vec<MethodFilter> {
    let methods = [
        (MethodFilter::GET, &item.get, &other.get),
        (MethodFilter::PUT, &item.put, &other.put),
        (MethodFilter::POST, &item.post, &other.post),
        (MethodFilter::DELETE, &item.delete, &other.delete),
        (MethodFilter::PATCH, &item.patch, &other.patch),
    ];
    let missing = methods.into_iter().filter(|(_, own, theirs)| own.is_none() && theirs.is_some());
    missing.map(|(method, ..)| method).collect()
}

/// Escapes the first letter of the last segment. The path means the same, but the router does not recognise the word.
async fn as_name(mut request: Request) -> Request {
    if let Some(uri) = escaped(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

fn escaped(uri: &Uri) -> Option<Uri> {
    let (folder, name) = uri.path().rsplit_once('/')?;
    let first = name.bytes().next().filter(u8::is_ascii)?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let text = format!("{folder}/%{first:02X}{}{query}", &name[1..]);
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(text).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_escaped_and_the_rest_of_the_address_stays() {
        for (from, to) in [
            ("/policies/preview", "/policies/%70review"),
            ("/a/b?x=/y", "/a/%62?x=/y"),
            ("http://host:1/a/b", "http://host:1/a/%62"),
        ] {
            assert_eq!(escaped(&from.parse().unwrap()).unwrap(), to, "{from}");
        }
        assert_eq!(escaped(&"/a/".parse().unwrap()), None);
    }
}
