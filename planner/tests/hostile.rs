//! Text from untrusted users: no panic, no stack overflow, no endless work.

use std::collections::BTreeMap;

use planner::hookrun::arguments::{Place, fill};
use planner::hookrun::duration;
use planner::hookrun::expression::Expression;
use planner::jsonpath::JsonPath;
use proptest::prelude::*;
use serde_json::{Value, json};

fn config() -> ProptestConfig {
    let cases = std::env::var("PLANNER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000);
    ProptestConfig { cases, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(11), ..ProptestConfig::default() }
}

/// Pieces of the languages, in any order: far more of it parses than of plain noise.
fn soup(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::collection::vec(prop::sample::select(pieces), 0..60).prop_map(|words| words.concat()),
        1 => any::<String>(),
        1 => (prop::sample::select(pieces), 0..1200_usize).prop_map(|(piece, times)| piece.repeat(times)),
    ]
}

const PATH: &[&str] = &[
    "{",
    "}",
    "$",
    "@",
    ".",
    "..",
    "a",
    "b",
    "[",
    "]",
    "*",
    "0",
    "1",
    "-1",
    ":",
    ",",
    "'a'",
    "\"x\"",
    "[?(",
    ")]",
    "==",
    "<",
    "range ",
    "end",
    " ",
    "\\",
    "\\.",
    "[*]",
    ".items",
    "é",
    "\n",
    "true",
    "{range .items[*]}",
    "{end}",
    "{.a}",
];
const CONDITION: &[&str] = &[
    "result",
    "asInt(",
    "asFloat(",
    "len(",
    "all(",
    "map(",
    "filter(",
    "count(",
    ")",
    "(",
    "[",
    "]",
    "{",
    "}",
    "#",
    "1",
    "0.5",
    "'a'",
    "\"",
    "..",
    " and ",
    " or ",
    "not ",
    " in ",
    " matches ",
    " == ",
    " < ",
    "+",
    "-",
    "*",
    "/",
    "%",
    "**",
    "? ",
    " : ",
    ".",
    ",",
    "|",
    "nil",
    "true",
    "é",
    "\\",
    "`",
    "1..3",
    "b'x'",
    "0x",
    "_",
    "$",
    "!",
    "?.",
    "??",
    ";",
    "let ",
    "if ",
];
const TEMPLATE: &[&str] = &["{{", "}}", "{", "}", "args.", "a", "b", " ", "|", "raw", "é", "\"", "\\", "%", "{{ args.a }}"];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[ab]|items", inner, 0..3).prop_map(|fields| json!(fields)),
        ]
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn paths_neither_panic_nor_run_away(text in soup(PATH), value in value()) {
        if let Ok(path) = JsonPath::parse(&text)
            && let Ok(said) = path.render(&value) {
            prop_assert!(said.len() <= 2_000_000);
        }
    }

    #[test]
    fn conditions_neither_panic_nor_run_away(text in soup(CONDITION), value in value()) {
        if let Ok(expression) = Expression::parse(&text) {
            let _ = expression.holds(&value);
        }
    }

    #[test]
    fn templates_and_durations_neither_panic_nor_look_twice(text in soup(TEMPLATE), a in ".{0,12}") {
        let arguments = BTreeMap::from([("a".to_owned(), a.clone())]);
        if let Ok(filled) = fill(&text, &arguments, Place::Plain) {
            let times = text.len() / 5 + 1;
            prop_assert!(filled.len() <= text.len() + a.len() * times);
        }
        let _ = duration::parse(&text);
    }
}
