//! Conditions: expr-language over `result`.
//!
//! In: a condition and a result. Out: true, false, or what is wrong. What a condition contains is validated before it
//! is parsed, because the parser recurses and parses brackets more than once: length, number of tokens, nesting, names,
//! and the ends of ranges.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use expr::{Context, Environment, Error, Value as Expr};
use serde_json::Value;

use super::Problem;
use super::guard::guard;
use super::pattern::{self, Patterns};

pub use super::guard::MAX_CONDITION_BYTES;

/// The largest result that conditions are evaluated for: bytes of text, and values in lists and objects.
const MAX_RESULT_SIZE: usize = 16 * 1024;

/// A parsed condition.
#[derive(Debug)]
pub struct Expression {
    program: expr::Program,
    /// The environment that it runs in, if it has patterns.
    own: Option<Environment<'static>>,
    /// Elements of `result` that it names by their index.
    elements: Vec<u64>,
}

/// Conditions that were parsed before, and the error if they are invalid: the same ones are checked for every pod.
static CHECKED: Mutex<BTreeMap<String, Result<(), Problem>>> = Mutex::new(BTreeMap::new());
/// The most conditions that are remembered.
const MAX_CHECKED: usize = 1024;

impl Expression {
    /// Whether a condition is valid.
    pub fn check(text: &str) -> Result<(), Problem> {
        if text.len() > MAX_CONDITION_BYTES {
            return Self::parse(text).map(drop);
        }
        let checked = || CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = checked().get(text) {
            return known.clone();
        }
        let result = Self::parse(text).map(drop);
        let mut checked = checked();
        if checked.len() >= MAX_CHECKED {
            checked.clear();
        }
        checked.insert(text.to_owned(), result.clone());
        result
    }

    /// Parses a condition. The error names the position.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let (words, elements) = guard(text)?;
        // First as the author wrote it, so that positions in messages are the author's.
        let program = expr::compile(text).map_err(|error| Problem(place(&error)))?;
        let Some((text, patterns)) = pattern::taken_out(text, &words)? else { return Ok(Self { program, own: None, elements }) };
        let program = expr::compile(&text).map_err(|error| Problem(place(&error)))?;
        Ok(Self { program, own: Some(environment_with(patterns)), elements })
    }

    /// Whether the condition holds for a result.
    pub fn holds(&self, result: &Value) -> Result<bool, Problem> {
        let size = size(result);
        if size > MAX_RESULT_SIZE {
            return Err(Problem(format!("the result is too large to be judged: {size}, at most {MAX_RESULT_SIZE}")));
        }
        // The library evaluates an element that does not exist to nil. That is unequal to every value, so that a
        // condition such as `result[0] != 1` would hold without data.
        if let Value::Array(items) = result
            && let Some(missing) = self.elements.iter().find(|index| usize::try_from(**index).is_ok_and(|index| index >= items.len()))
        {
            return Err(Problem(format!("there is no result[{missing}]: the list has {} elements", items.len())));
        }
        let context: Context = [("result", convert(result))].into_iter().collect();
        match self.own.as_ref().unwrap_or_else(|| environment()).run(&self.program, &context) {
            Ok(Expr::Bool(answer)) => Ok(answer),
            Ok(other) => Err(Problem(format!("the condition is neither true nor false, but {}", kind(&other)))),
            Err(error) => Err(Problem(place(&error))),
        }
    }
}

/// The error on one line: the library prints the condition, with a marker below the position.
fn place(error: &Error) -> String {
    let text = error.to_string();
    let column = text.split_once("--> 1:").and_then(|(_, rest)| rest.lines().next()).and_then(|column| column.trim().parse::<usize>().ok());
    match column {
        Some(column) => format!("cannot be read at character {column}"),
        None => text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" "),
    }
}

/// Bytes of text plus the number of values.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size(item).saturating_add(1)).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len().saturating_add(size(value)).saturating_add(1)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn kind(value: &Expr) -> &'static str {
    match value {
        Expr::Integer(_) | Expr::Float(_) => "a number",
        Expr::Bool(_) => "true or false",
        Expr::Nil => "nothing",
        Expr::String(_) | Expr::Bytes(_) => "a text",
        Expr::Array(_) => "a list",
        Expr::Map(_) | Expr::KeyedMap(_) => "an object",
    }
}

fn convert(value: &Value) -> Expr {
    match value {
        Value::Null => Expr::Nil,
        Value::Bool(value) => Expr::Bool(*value),
        Value::Number(number) => number.as_i64().map_or_else(|| Expr::Float(unbounded(number.as_f64().unwrap_or(f64::NAN))), Expr::Integer),
        Value::String(text) => Expr::String(text.clone()),
        Value::Array(items) => Expr::Array(items.iter().map(convert).collect()),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), convert(value))).collect(),
    }
}

/// JSON has no infinity: the largest number represents it.
fn unbounded(number: f64) -> f64 {
    match number {
        f64::MAX => f64::INFINITY,
        f64::MIN => f64::NEG_INFINITY,
        number => number,
    }
}

fn environment() -> &'static Environment<'static> {
    static ENVIRONMENT: std::sync::LazyLock<Environment<'static>> = std::sync::LazyLock::new(functions);
    &ENVIRONMENT
}

fn environment_with(patterns: Patterns) -> Environment<'static> {
    let mut environment = functions();
    environment.add_function(pattern::FUNCTION, move |call| match call.args.as_slice() {
        [Expr::String(text), Expr::Integer(number)] => Ok(patterns.fits(*number, text).into()),
        _ => Err(Error::ExprError("Invalid operands for operator matches".to_owned())),
    });
    environment
}

fn functions() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.add_function("asInt", |call| single("asInt", &call.args).and_then(as_int));
    environment.add_function("asFloat", |call| single("asFloat", &call.args).and_then(as_float).map(Expr::Float));
    environment.add_function("isNaN", |call| single("isNaN", &call.args).and_then(as_float).map(|number| number.is_nan().into()));
    environment.add_function("isInf", |call| single("isInf", &call.args).and_then(as_float).map(|number| number.is_infinite().into()));
    environment.add_function("isNil", |call| single("isNil", &call.args).map(|value| (*value == Expr::Nil).into()));
    environment.add_function("default", |call| match call.args.as_slice() {
        [Expr::Nil, other] => Ok(other.clone()),
        [value, _] => Ok(value.clone()),
        _ => Err(Error::ExprError("default() takes a value and what stands for it if it is nil".to_owned())),
    });
    environment
}

fn single<'a>(name: &str, arguments: &'a [Expr]) -> Result<&'a Expr, Error> {
    match arguments {
        [value] => Ok(value),
        _ => Err(Error::ExprError(format!("{name}() takes one value"))),
    }
}

fn as_int(value: &Expr) -> Result<Expr, Error> {
    let no = |what: &str| Error::ExprError(format!("asInt: {what} is no whole number"));
    match value {
        Expr::Integer(number) => Ok(Expr::Integer(*number)),
        // Within 2^53 every whole number has its own float.
        Expr::Float(number) if number.abs() <= 9_007_199_254_740_992.0 => {
            format!("{:.0}", number.trunc()).parse().map(Expr::Integer).map_err(|_| no("it"))
        }
        Expr::String(text) => text.parse().map(Expr::Integer).map_err(|_| no(&quoted(text))),
        Expr::Float(_) | Expr::Bool(_) | Expr::Nil | Expr::Array(_) | Expr::Bytes(_) | Expr::Map(_) | Expr::KeyedMap(_) => {
            Err(no(kind(value)))
        }
    }
}

fn as_float(value: &Expr) -> Result<f64, Error> {
    let no = |what: &str| Error::ExprError(format!("{what} is no number"));
    match value {
        Expr::Integer(number) => number.to_string().parse().map_err(|_| no("it")),
        Expr::Float(number) => Ok(*number),
        Expr::String(text) => text.parse().map_err(|_| no(&quoted(text))),
        Expr::Bool(_) | Expr::Nil | Expr::Array(_) | Expr::Bytes(_) | Expr::Map(_) | Expr::KeyedMap(_) => Err(no(kind(value))),
    }
}

fn quoted(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    if short.len() < text.len() { format!("{short:?}…") } else { format!("{short:?}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ask(condition: &str, result: &Value) -> Result<bool, String> {
        Expression::parse(condition).and_then(|expression| expression.holds(result)).map_err(|problem| problem.0)
    }

    #[test]
    fn conditions_are_answered() {
        let text = json!("32");
        for (condition, result, expected) in [
            ("asInt(result) < 30", &text, false),
            ("asInt(result) > 30", &text, true),
            ("asInt(result) >= 30 and asInt(result) <= 40", &text, true),
            ("asFloat(result) / 2 == 16.0", &text, true),
            ("result == \"32\"", &text, true),
            ("result in ['31', '32']", &text, true),
            ("not (result matches '^4')", &text, true),
            ("result matches \"^\\\\d{2}$\" and len(result) == 2", &text, true),
            ("(result matches '3') == (result + 'x' matches '2x$')", &text, true),
            ("all(['31', result], {# matches '^3'})", &text, true),
            ("any(1..3, {'a' matches 'b'}) ? false : result matches '2'", &text, true),
            ("result startsWith '3' && result endsWith '2' || false", &text, true),
            ("len(result) == 2 ? true : false", &text, true),
            ("asInt(result) in 1..40", &text, true),
            ("result < 0.05", &json!(0.04), true),
            ("result[0] < 0.05", &json!([0.04, 1.0]), true),
            ("all(result, {# < 2})", &json!([0.04, 1.0]), true),
            ("any(result, {# > 2})", &json!([0.04, 1.0]), false),
            ("count(result, {# > 0.5}) == 1", &json!([0.04, 1.0]), true),
            ("len(filter(result, {# > 0.5})) == 1", &json!([0.04, 1.0]), true),
            ("result.state == 'idle'", &json!({ "state": "idle" }), true),
            ("isNil(result.other)", &json!({ "state": "idle" }), true),
            ("default(result.other, 7) == 7", &json!({ "state": "idle" }), true),
            ("isNaN(asFloat('NaN')) and isInf(asFloat('inf'))", &text, true),
        ] {
            assert_eq!(ask(condition, result), Ok(expected), "{condition}");
        }
    }

    #[test]
    fn no_data_is_no_approval() {
        assert!(ask("result[0] == 0", &json!([])).unwrap_err().contains("there is no result[0]"));
        assert_eq!(ask("len(result) == 0 or result[0] < 1", &json!([0.5])), Ok(true));
        assert_eq!(ask("len(result) == 1 and result[0] < 1", &json!([])), Ok(false), "a condition that asks for the length gets an answer");
        assert_eq!(ask("isInf(result) and result > 5", &json!(f64::MAX)), Ok(true));
        assert!(ask("all(result, {# > 0})", &json!(vec![1; 20_000])).unwrap_err().contains("too large"));
    }

    #[test]
    fn what_cannot_be_answered_says_why() {
        let text = json!("32");
        for (condition, expected) in [
            ("result > 10", "Invalid operands"),
            ("asInt('3.5') > 3", "\"3.5\" is no whole number"),
            ("asInt(result)", "neither true nor false"),
            ("players > 3", "at character 1: players is not known"),
            ("len(result) > 3 && repeat(result, 9) == ''", "repeat() is not known"),
            ("result.trim() == ''", ".trim() is not known"),
            ("len(1..10000000) > 1", "both at most 1000"),
            ("len(1..asInt(result)) > 1", "both at most 1000"),
            ("len(1..1000*1000*1000) > 1", "both at most 1000"),
            ("len(9*9..1000) > 1", "both at most 1000"),
            ("all(1..9, {all(1..9, {true})})", "do not stand in one another"),
            ("all(1..9, any(1..9, # > 3))", "do not stand in one another"),
            ("(result", "( is not closed"),
            ("result)", "closes nothing"),
            ("result == 'a", "a string is not closed"),
            ("result == // x", "no comments"),
            ("result ==", "cannot be read at character"),
            ("", "is empty"),
            ("$env == nil", "$env is not known"),
            ("result matches result", "a pattern in quotes"),
            ("result matches ('a' + '(b')", "a pattern in quotes"),
            ("result matches 'a' + '(b'", "a pattern in quotes"),
            ("result matches '('", "the pattern cannot be read"),
            ("result matches '(\\\\w{9}){99}'", "is too large"),
            ("result == 'a' matches 'b'", "brackets around"),
            ("not result matches 'b'", "brackets around"),
            ("asInt(result) matches '3'", "Invalid operands for operator matches"),
            (
                "result matches 'a' or result matches 'a' or result matches 'a' or result matches 'a' or result matches 'a'",
                "more than 4 patterns",
            ),
            ("len(map(1..1000, {result + result})) > 1", "inside map"),
            (
                "result+result+result+result+result+result+result+result+result+result+result+result+result+result+result+result+result == ''",
                "more than 16 times",
            ),
        ] {
            let problem = ask(condition, &text).unwrap_err();
            assert!(problem.contains(expected), "{condition}: {problem}");
        }
        for bomb in
            [format!("{}1{}", "(".repeat(400), ")".repeat(400)), "result[".repeat(60) + &"]".repeat(60), "1 + ".repeat(200) + "1 == 1"]
        {
            assert!(ask(&bomb, &text).is_err(), "{bomb}");
        }
        assert!(ask(&"x".repeat(2000), &text).unwrap_err().contains("longer"));
    }
}
