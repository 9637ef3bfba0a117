//! Rules of the OpenAPI document that the derived schemas cannot state: patterns of names and addresses, fields that exclude
//! each other, and fields that belong to one value of another field.

use redrive_delivery::headers::{RESERVED_HEADERS, RESERVED_PREFIXES};
use serde_json::{Value, json};

/// A name without control characters.
const NAME: &str = r"^[^\x00-\x1f\x7f-\x9f]*$";
/// Text without the NUL character.
const NO_NUL: &str = r"^[^\x00]*$";
/// A host: a name, or an IPv6 address.
const HOST: &str =
    r"(([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?|\[IPV6\])";
/// The forms of an IPv6 address. `H` stands for a group of digits.
const IPV6: &str = "((H:){7}H|(H:){1,7}:|(H:){1,6}:H|(H:){1,5}(:H){1,2}|(H:){1,4}(:H){1,3}|(H:){1,3}(:H){1,4}|\
    (H:){1,2}(:H){1,5}|H:(:H){1,6}|:((:H){1,7}|:))";
const PORT: &str =
    r"(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?";
/// A path and query of characters that need no percent-encoding.
const PATH: &str = r"([/?][A-Za-z0-9._~:/?@!$&'()*+,;=%-]*)?";
const GRPC_METHOD: &str = r"/[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*/[A-Za-z0-9_]+";
/// A tenant in a header: visible ASCII and spaces, without spaces at its ends.
const TENANT: &str = r"^([!-~]([ -~]*[!-~])?)?$";
/// `whsec_` and the base64 of 24 to 64 bytes.
const SIGNING_SECRET: &str = r"^whsec_(([A-Za-z0-9+/]{4}){8,20}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?|([A-Za-z0-9+/]{4}){21}([A-Za-z0-9+/][AQgw]==)?)$";
/// The reference of an uploaded body.
const BODY_REF: &str = r"^b1\.[0-9a-f]{32}\.(0|[1-9][0-9]{0,7})\.[0-9a-f]{64}$";
/// The name of a header.
const HEADER_NAME: &str = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
/// The value of a header: visible ASCII, without spaces at its ends.
const HEADER_VALUE: &str = r"^([!-~]([\t -~]*[!-~])?)?$";

/// Adds the rules to a document.
pub(crate) fn add(document: &mut Value) {
    let schemas = &mut document["components"]["schemas"];
    task_rules(&mut schemas["TaskRequest"]);
    policy_rules(&mut schemas["RetryPolicy"]);
    operation_rules(&mut schemas["OperationRequest"]);
    let filter = &mut schemas["JobFilter"]["properties"];
    for (name, rule) in FILTER_RULES {
        restrict(&mut filter[name], rule);
    }
    restrict(&mut schemas["KeyRequest"]["properties"]["name"], &Rule { pattern: NAME, max: 128, min: 1 });
    restrict(&mut schemas["KeyRequest"]["properties"]["tenant"], &Rule { pattern: NAME, max: 128, min: 0 });
    restrict(&mut schemas["SignalRequest"]["properties"]["name"], &Rule { pattern: NAME, max: 128, min: 1 });
    schemas["SecretRequest"]["properties"]["secret"]["pattern"] = SIGNING_SECRET.into();
    parameter_rules(document);
    let register =
        &mut document["paths"]["/v1/policies"]["post"]["requestBody"]["content"]["application/json"];
    let named = json!({"required": ["policyId"], "properties": {"policyId": {"type": "string"}}});
    register["schema"] = json!({"allOf": [register["schema"].take(), named]});
}

fn host() -> String {
    HOST.replace("IPV6", &IPV6.replace('H', "[0-9A-Fa-f]{1,4}"))
}

/// The URL of a callback.
fn http_url() -> String {
    format!("^https?://{}{PORT}{PATH}$", host())
}

/// The target of a task: a URL, or a gRPC method.
fn target() -> String {
    let host = host();
    format!("^(https?://{host}{PORT}{PATH}|grpcs?://{host}{PORT}{GRPC_METHOD})$")
}

/// The pattern and the length of a text.
struct Rule {
    pattern: &'static str,
    min: u32,
    max: u32,
}

/// The rules for the texts of a filter.
const FILTER_RULES: [(&str, &Rule); 6] = [
    ("kind", &Rule { pattern: NAME, min: 1, max: 128 }),
    ("queue", &Rule { pattern: NAME, min: 1, max: 128 }),
    ("policyId", &Rule { pattern: NAME, min: 1, max: 128 }),
    ("target", &Rule { pattern: NO_NUL, min: 0, max: 2048 }),
    ("idempotencyKey", &Rule { pattern: NAME, min: 1, max: 256 }),
    ("tenant", &Rule { pattern: NAME, min: 0, max: 128 }),
];

fn restrict(schema: &mut Value, rule: &Rule) {
    schema["pattern"] = rule.pattern.into();
    schema["minLength"] = rule.min.into();
    schema["maxLength"] = rule.max.into();
}

/// Adds the rules for query parameters and headers.
fn parameter_rules(document: &mut Value) {
    let Some(paths) = document["paths"].as_object_mut() else { return };
    let operations = paths.values_mut().filter_map(Value::as_object_mut).flat_map(|item| item.values_mut());
    let parameters =
        operations.filter_map(|operation| operation.get_mut("parameters")?.as_array_mut()).flatten();
    for parameter in parameters {
        let (location, name) = (parameter["in"].as_str(), parameter["name"].as_str());
        let rule = FILTER_RULES.iter().find(|(field, _)| Some(*field) == name).map(|(_, rule)| *rule);
        match (location, name) {
            (Some("query"), _) if rule.is_some() => {
                rule.into_iter().for_each(|rule| restrict(&mut parameter["schema"], rule))
            }
            (Some("header"), Some("Redrive-Tenant")) => {
                parameter["schema"] = json!({"type": "string", "pattern": TENANT, "maxLength": 128});
            }
            (Some("header"), Some("Idempotency-Key")) => {
                parameter["schema"] =
                    json!({"type": "string", "pattern": "^[!-~]+$", "minLength": 1, "maxLength": 256});
            }
            (Some("header"), Some("If-Match")) => {
                parameter["schema"] =
                    json!({"type": "string", "minLength": 1, "pattern": r#"^(\*|"[0-9a-z]+")$"#});
            }
            _ => {}
        }
    }
}

fn task_rules(task: &mut Value) {
    let fields = &mut task["properties"];
    fields["target"]["pattern"] = target().into();
    fields["method"]["enum"] = json!(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", null]);
    fields["headers"]["maxProperties"] = 64.into();
    fields["headers"]["propertyNames"] =
        json!({"pattern": HEADER_NAME, "not": {"pattern": reserved_headers()}});
    fields["headers"]["additionalProperties"] = json!({"type": "string", "pattern": HEADER_VALUE});
    fields["bodyBase64"]["pattern"] = r"^([A-Za-z0-9+/]{4})*$".into();
    fields["bodyRef"]["pattern"] = BODY_REF.into();
    fields["idempotencyKey"]["pattern"] = "^[!-~]+$".into();
    for name in ["onSuccessUrl", "onFailureUrl"] {
        fields[name]["pattern"] = http_url().into();
    }
    restrict(&mut fields["signingSecret"], &Rule { pattern: NAME, min: 1, max: 128 });
    let exclusive =
        [&["body", "bodyJson", "bodyBase64", "bodyRef"][..], &["policyId", "policy"], &["delayMs", "runAt"]];
    let pairs = exclusive.iter().flat_map(|group| pairs(group)).map(|(one, other)| not_both(one, other));
    let rules = [grpc_rule(), inline_policy_rule()];
    task["allOf"] = pairs.chain(rules).collect();
}

/// A gRPC call is a POST of a serialised message. The descriptions state the rules for its headers, and for the headers of a
/// signed task: as a schema they would keep schemathesis from generating requests.
fn grpc_rule() -> Value {
    json!({
        "if": {"properties": {"target": {"pattern": "^grpc"}}},
        "then": {"properties": {"method": {"enum": ["POST", null]}, "bodyJson": {"type": "null"}}},
    })
}

/// A policy for one task has no name.
fn inline_policy_rule() -> Value {
    json!({"properties": {"policy": {"properties": {"policyId": {"type": "null"}}}}})
}

/// Matches the names of reserved headers in any case.
fn reserved_headers() -> String {
    let any_case = |name: &str| -> String {
        let letter = |char: char| match char.is_ascii_alphabetic() {
            true => format!("[{}{char}]", char.to_ascii_uppercase()),
            false => char.to_string(),
        };
        name.chars().map(letter).collect()
    };
    let names: Vec<String> = RESERVED_HEADERS.iter().map(|name| any_case(name)).collect();
    let prefixes: Vec<String> = RESERVED_PREFIXES.iter().map(|prefix| any_case(prefix)).collect();
    format!("^(({})$|{})", names.join("|"), prefixes.join("|"))
}

fn pairs<'a>(group: &'a [&'a str]) -> Vec<(&'a str, &'a str)> {
    let later = |index: usize| group.iter().skip(index + 1).copied();
    group.iter().enumerate().flat_map(|(index, one)| later(index).map(|other| (*one, other))).collect()
}

/// Requires that at most one of two fields is present and not null.
fn not_both(one: &str, other: &str) -> Value {
    json!({"not": {"required": [one, other], "properties": {one: not_null(), other: not_null()}}})
}

fn not_null() -> Value {
    json!({"not": {"type": "null"}})
}

fn policy_rules(policy: &mut Value) {
    let fields = &mut policy["properties"];
    fields["delaysMs"]["items"] = json!({"type": "integer", "minimum": 0, "maximum": 31_536_000_000_u64});
    fields["retryableStatusCodes"]["items"] = json!({"type": "integer", "minimum": 100, "maximum": 599});
    fields["retryableGrpcCodes"]["items"] = json!({"type": "integer", "minimum": 1, "maximum": 16});
    for name in ["onSuccessUrl", "onFailureUrl"] {
        fields[name]["pattern"] = http_url().into();
    }
    let (backoff, jitter) = ("backoffType", "jitterType");
    policy["allOf"] = json!([
        null_with(backoff, &[Some("exponential"), None], &["exponent", "delaysMs"]),
        null_with(backoff, &[Some("fixed"), Some("linear")], &["multiplier", "exponent", "delaysMs"]),
        null_with(backoff, &[Some("polynomial")], &["multiplier", "delaysMs"]),
        null_with(backoff, &[Some("schedule")], &["multiplier", "exponent", "initialDelayMs"]),
        needs(backoff, "schedule", "delaysMs", "array"),
        null_with(
            jitter,
            &[Some("none"), Some("full"), Some("equal"), Some("decorrelated"), None],
            &["jitterFraction", "jitterMs"]
        ),
        null_with(jitter, &[Some("proportional")], &["jitterMs"]),
        null_with(jitter, &[Some("absolute")], &["jitterFraction"]),
        needs(jitter, "proportional", "jitterFraction", "number"),
        needs(jitter, "absolute", "jitterMs", "integer"),
    ]);
}

/// Requires that `fields` are absent or null if `of` has one of `values`. The value `None` stands for an absent `of`.
fn null_with(of: &str, values: &[Option<&str>], fields: &[&str]) -> Value {
    let absent: serde_json::Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!({"type": "null"}))).collect();
    let required: &[&str] = if values.contains(&None) { &[] } else { &[of] };
    json!({
        "if": {"required": required, "properties": {of: {"enum": values}}},
        "then": {"properties": absent},
    })
}

/// Requires `field`, with this type, if `of` has this value.
fn needs(of: &str, value: &str, field: &str, field_type: &str) -> Value {
    json!({
        "if": {"required": [of], "properties": {of: {"const": value}}},
        "then": {"required": [field], "properties": {field: {"type": field_type}}},
    })
}

fn operation_rules(operation: &mut Value) {
    let without_canary = json!({"not": {"required": ["canary"], "properties": {"canary": not_null()}}});
    let states = |kinds: &[&str], states: &[Option<&str>]| {
        json!({
            "if": {"properties": {"kind": {"enum": kinds}}},
            "then": {"properties": {"filter": {"properties": {"state": {"enum": states}}}}},
        })
    };
    operation["allOf"] = json!([
        {"if": {"properties": {"kind": {"enum": ["discard", "cancel"]}}}, "then": without_canary},
        states(&["redrive", "discard"], &[Some("dead"), None]),
        states(&["cancel"], &[Some("pending"), Some("retrying"), Some("running"), Some("waiting"), None]),
        states(&["run_now"], &[Some("pending"), Some("retrying"), Some("waiting"), None]),
    ]);
}
