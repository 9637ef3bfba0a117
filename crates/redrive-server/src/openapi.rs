//! The OpenAPI document. It is generated from the routes; problems and security are added here.

use utoipa::openapi::path::Operation;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, PathItem, Ref, RefOr,
};
use utoipa::{PartialSchema, ToSchema};

use crate::error::PROBLEM_JSON;
use redrive_wire::{Code, ProblemDetails};

/// Paths that need no API key.
pub(crate) const PUBLIC: [&str; 4] = ["/healthz", "/readyz", "/openapi.json", "/docs"];
/// The name of the security scheme.
const BEARER: &str = "apiKey";
/// The name of the problem's schema.
const PROBLEM: &str = "Problem";

/// The document before the routes are added.
pub(crate) fn outline() -> OpenApi {
    let licence = LicenseBuilder::new().name("MIT OR Apache-2.0").identifier(Some("MIT OR Apache-2.0"));
    let info = InfoBuilder::new()
        .title("redrive")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Hand it a call; it delivers the call under a retry policy and keeps the evidence.",
        ))
        .license(Some(licence.build()));
    OpenApiBuilder::new().info(info).build()
}

/// Adds what every route has in common: the problems that it can answer with, and authentication.
pub(crate) fn finish(mut document: OpenApi) -> OpenApi {
    let components = document.components.get_or_insert_default();
    components.schemas.insert(PROBLEM.to_owned(), ProblemDetails::schema());
    let mut schemas = Vec::new();
    ProblemDetails::schemas(&mut schemas);
    components.schemas.extend(schemas);
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("rdk_<id>_<secret>");
    components.security_schemes.insert(BEARER.to_owned(), RefOr::T(SecurityScheme::Http(scheme.build())));
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            complete(path, operation);
        }
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete].into_iter().flatten()
}

fn complete(path: &str, operation: &mut Operation) {
    let public = PUBLIC.contains(&path);
    for code in problems(path, operation, public) {
        let answers = &mut operation.responses.responses;
        let status = code.status().to_string();
        answers.entry(status).or_insert_with(|| RefOr::T(problem(code.title())));
    }
    for (status, answer) in &mut operation.responses.responses {
        if let RefOr::T(answer) = answer
            && status.starts_with(['4', '5'])
        {
            *answer = problem(&answer.description);
        }
    }
    if !public {
        let none: [&str; 0] = [];
        operation.security =
            Some(vec![SecurityRequirement::new(BEARER, none), SecurityRequirement::default()]);
    }
}

/// The problems that a route can answer with, depending on its parameters and body.
fn problems(path: &str, operation: &Operation, public: bool) -> Vec<Code> {
    let mut codes = vec![Code::Internal, Code::Unavailable];
    if operation.request_body.is_some() {
        codes.extend([Code::MalformedJson, Code::RequestTooSlow, Code::Overloaded]);
    }
    codes.push(Code::InvalidHost);
    if !public {
        codes.extend([Code::Unauthenticated, Code::Forbidden, Code::Invalid, Code::TooManyFailedLogins]);
    }
    if path.contains('{') {
        codes.push(Code::NotFound);
    }
    if operation.request_body.is_some() {
        codes.extend([Code::BodyTooLarge, Code::UnsupportedMediaType, Code::StoreFull]);
    }
    if path.contains('{') || operation.request_body.is_some() {
        codes.push(Code::StoreFull);
    }
    codes
}

fn problem(description: &str) -> Response {
    let schema = Ref::from_schema_name(PROBLEM);
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description(description).content(PROBLEM_JSON, content).build()
}
