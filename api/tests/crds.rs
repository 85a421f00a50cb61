//! The generated files are those of the types.

use std::path::Path;

use serde_json::Value;

#[test]
fn chart_crds_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../chart/crds");
    let mut expected: Vec<String> = Vec::new();
    for (file, crd) in api::schema::crds() {
        let committed = std::fs::read_to_string(folder.join(&file)).unwrap_or_default();
        assert_eq!(committed, api::schema::to_yaml(&crd).unwrap(), "chart/crds/{file} is stale: run `make gen`");
        expected.push(file);
    }
    let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, expected, "chart/crds holds files of no type");
}

#[test]
fn crds_are_small_enough_for_a_plain_apply() {
    for (file, crd) in api::schema::crds() {
        let bytes = api::schema::to_yaml(&crd).unwrap().len();
        assert!(bytes < 100_000, "{file} has {bytes} bytes");
    }
}

#[test]
fn schemas_leave_null_to_the_defaults() {
    fn check(path: &str, schema: &Value) {
        match schema {
            Value::Object(fields) => {
                assert!(!fields.contains_key("nullable"), "{path}");
                fields.iter().for_each(|(key, value)| check(&format!("{path}.{key}"), value));
            }
            Value::Array(items) => items.iter().for_each(|value| check(path, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    api::schema::crds().iter().for_each(|(file, crd)| check(file, crd));
}

#[test]
fn columns_come_in_the_order_of_the_walk_through() {
    let (_, crd) = api::schema::crds().remove(0);
    let columns = crd.pointer("/spec/versions/0/additionalPrinterColumns").and_then(Value::as_array).unwrap();
    let shown: Vec<_> =
        columns.iter().filter(|column| column.get("priority").is_none()).map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(shown, ["DESIRED", "UPDATED", "UPDATED_READY", "READY", "TOTAL", "AGE"]);
}
