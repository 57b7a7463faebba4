//! The controller's HTTP API as an OpenAPI 3.1 document. The schemas of answers come from their Rust types.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::status::{GrantStatus, RelayStatus, Status};
use anabranch_service::http::Problem;

pub(super) fn document() -> Value {
    // OpenAPI 3.1 uses plain JSON Schema.
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    let mut types = settings.into_generator();
    let [status, relay, grants, trouble] = [
        types.subschema_for::<Status>(),
        types.subschema_for::<RelayStatus>(),
        types.subschema_for::<Vec<GrantStatus>>(),
        types.subschema_for::<Problem>(),
    ]
    .map(schemars::Schema::to_value);
    let operation = |about: &str, parameters: &[Value], answer: &Value| {
        json!({
            "summary": about,
            "parameters": parameters,
            "responses": {
                "200": {"description": "done", "content": {"application/json": {"schema": answer}}},
                "default": {"description": "not done, and why", "content": {"application/json": {"schema": trouble}}},
            },
        })
    };
    let (key, id) =
        (parameter("key", "a public key, ab1…"), parameter("id", "a grant's name, 32 hexadecimal digits"));
    let (of_client, of_grant) = ([key.clone()], [key, id]);
    json!({
        "openapi": "3.1.0",
        "info": {"title": "anabranch controller", "version": env!("CARGO_PKG_VERSION")},
        "components": {
            "schemas": types.take_definitions(true),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
        "paths": {
            "/api/v1/status": {"get": operation("The controller's relays", &[], &status)},
            "/api/v1/relays/{key}": {"get": operation("One relay", &of_client, &relay)},
            "/api/v1/clients/{key}/grants": {
                "get": operation("The grants of a client", &of_client, &grants),
                "delete": operation("Revoke all grants of a client", &of_client, &grants),
            },
            "/api/v1/clients/{key}/grants/{id}": {
                "delete": operation("Revoke one grant", &of_grant, &grants),
            },
            "/api/v1/events": {"get": text("Server-sent events: `status` whenever it has changed", "text/event-stream")},
            "/api/v1/openapi.json": {"get": text("This document", "application/json")},
            "/metrics": {"get": text("For Prometheus, text format 0.0.4", "text/plain")},
        },
    })
}

fn parameter(name: &str, about: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "description": about, "schema": {"type": "string"}})
}

/// An answer that is not JSON.
fn text(about: &str, kind: &str) -> Value {
    json!({"summary": about, "responses": {"200": {"description": "done", "content": {kind: {}}}}})
}
