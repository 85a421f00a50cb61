use serde_json::{Value, json};

use super::JsonPath;

fn store() -> Value {
    json!({
        "age": 45, "name": "bryan", "big": 1_000_000, "share": 0.25, "nothing": null, "yes": true,
        "items": [{ "id": 1, "kind": "a", "tags": ["x", "y"] }, { "id": 2, "kind": "b" }, { "id": 3, "kind": "a" }],
        "metadata": { "annotations": { "game.io/state": "idle", "a.b": "dots" } },
        "empty": [],
    })
}

fn render(template: &str) -> Result<String, String> {
    JsonPath::parse(template).and_then(|path| path.render(&store())).map_err(|problem| problem.0)
}

#[test]
fn templates_say_what_kubectl_says() {
    for (template, expected) in [
        ("{$.age}", "45"),
        ("{.age}", "45"),
        ("{@.age}", "45"),
        ("{ .age }", "45"),
        ("{.big}", "1000000"),
        ("{.share}", "0.25"),
        ("{.nothing}", "null"),
        ("{.yes}", "true"),
        ("age: {.age}!", "age: 45!"),
        ("{.name} {.age}", "bryan 45"),
        ("{.name}{\"\\t\"}{.age}", "bryan\t45"),
        ("{['name']}", "bryan"),
        ("{.metadata.annotations['game\\.io/state']}", "idle"),
        ("{.metadata.annotations.game\\.io/state}", "idle"),
        ("{.items[0].id}", "1"),
        ("{.items[-1].id}", "3"),
        ("{.items[*].id}", "1 2 3"),
        ("{.items[0:2].id}", "1 2"),
        ("{.items[1:].id}", "2 3"),
        ("{.items[:-1].id}", "1 2"),
        ("{.items[::2].id}", "1 3"),
        ("{.items[0,2].id}", "1 3"),
        ("{.items[0]['id','kind']}", "1 a"),
        ("{.items[?(@.kind==\"a\")].id}", "1 3"),
        ("{.items[?(@.kind!='a')].id}", "2"),
        ("{.items[?(@.id>1)].id}", "2 3"),
        ("{.items[?(@.id<=2)].kind}", "a b"),
        ("{.items[?(@.tags)].id}", "1"),
        ("{..id}", "1 2 3"),
        ("{.items[0].tags}", r#"["x","y"]"#),
        ("{.items[1]}", r#"{"id":2,"kind":"b"}"#),
        ("{range .items[*]}{.id}={.kind};{end}", "1=a;2=b;3=a;"),
        ("{range .items[0:1]}[{range .tags[*]}<{@}>{end}]{end}", "[<x><y>]"),
        ("{range .empty[*]}{.id}{end}done", "done"),
        ("{.items[0:0].id}", ""),
        ("{.items[?(@.kind=='z')].id}", ""),
    ] {
        assert_eq!(render(template).as_deref(), Ok(expected), "{template}");
    }
}

#[test]
fn what_cannot_be_followed_is_named() {
    for (template, expected) in [
        ("$.age", "write {$.age}"),
        ("{.missing}", "missing is not found"),
        ("{.age", "not closed"),
        ("{.items[9]}", "index 9 is outside a list of 3"),
        ("{.items[x]}", "no index, slice or quoted key"),
        ("{.age[0]}", "45 is no list"),
        ("{.items[?(@.id=~2)]}", "no comparison"),
        ("{.items[?(@.id>'a')]}", "cannot be compared"),
        ("{.items[?(@.id}", "a filter is not closed"),
        ("{age}", "a field begins with a dot"),
        ("{....age}", "several `..`"),
        ("{end}", "{end} without {range}"),
        ("{range .items[*]}{.id}", "{range} without {end}"),
        ("{\"open}", "a string is not closed"),
        ("{#}", "does not belong"),
        ("{..*}", "does not belong"),
        ("{range .items[*]}{range .tags[*]}{@}{end}{end}", "tags is not found"),
    ] {
        let problem = render(template).unwrap_err();
        assert!(problem.contains(expected), "{template}: {problem}");
    }
    assert!(render(&format!("{{{}}}", ".a".repeat(600))).unwrap_err().contains("longer"));
}

#[test]
fn endless_work_is_cut_off() {
    let row = json!(vec![0; 50]);
    let cube = json!(vec![json!(vec![row; 50]); 50]);
    let path = JsonPath::parse("{[*][*][*]}").unwrap();
    assert_eq!(path.render(&cube).unwrap_err().0, "too much is matched");
    let long = json!(vec![1; 50_000]);
    for bomb in [format!("{{[{}]}}", vec!["*"; 400].join(",")), format!("{{range [*]}}{}{{end}}", "x".repeat(900))] {
        let problem = JsonPath::parse(&bomb).unwrap().render(&long).unwrap_err();
        assert_eq!(problem.0, "too much is matched", "{bomb}");
    }
    // Copied values count even if there are few matches, and so do compared ones.
    let branch = json!({ "a": json!(vec!["x"; 2_000]) });
    let copies = JsonPath::parse(&format!("{{[{}]}}", vec!["'a'"; 200].join(","))).unwrap();
    assert_eq!(copies.find(&branch).unwrap_err().0, "too much is matched");
    let text = "x".repeat(100_000);
    let equal = json!(vec![json!({ "a": text, "b": text }); 100]);
    let comparing = JsonPath::parse("{[?(@.a==@.b)]}").unwrap();
    assert_eq!(comparing.find(&equal).unwrap_err().0, "too much is matched");
    let nested = "[?(".repeat(200);
    assert!(JsonPath::parse(&format!("{{{nested}}}")).is_err());
}

#[test]
fn a_single_action_finds_values_as_they_are() {
    let find = |template: &str| JsonPath::parse(template).and_then(|path| path.find(&store())).unwrap();
    assert_eq!(find("{.age}"), json!(45));
    assert_eq!(find("{.items[0].tags}"), json!(["x", "y"]));
    assert_eq!(find("{.items[*].id}"), json!([1, 2, 3]));
    assert_eq!(find("{.age} years"), json!("45 years"));
}
