"""Checks of our own for schemathesis."""

import schemathesis

# Rejections that depend on what the store holds, which a schema cannot state.
STATE_CODES = {"unknown_policy", "unknown_body", "idempotency_key_reused"}
# A cursor comes from an earlier answer, a signing secret must exist, and a time must be near enough to the present.
STATE_FIELDS = {"cursor", "signingSecret", "runAt"}


@schemathesis.check
def a_valid_request_is_not_rejected(ctx, response, case):
    """The document states every rule: a request that follows it gets no 400 and no 422."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if response.status_code not in (400, 422):
        return
    problem = response.json()
    if problem.get("code") in STATE_CODES or problem.get("field") in STATE_FIELDS:
        return
    # JSON Schema counts 2.0 as an integer. The service does not.
    if "invalid type: floating point" in problem.get("detail", ""):
        return
    # Schemathesis sends an empty header although the document requires a value.
    if problem.get("field") == "If-Match" and not (case.headers or {}).get("If-Match"):
        return
    # A schema cannot compare two fields.
    if "must not be above maxDelayMs" in problem.get("detail", ""):
        return
    # The name in the body must be the name in the path.
    if problem.get("field") == "policyId" and case.method == "PUT":
        return
    raise AssertionError(f"a rule is missing in the document: {problem.get('field')}: {problem.get('detail')}")
