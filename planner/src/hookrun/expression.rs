//! Conditions: expr-language over `result`.
//!
//! In: a condition and a result. Out: true, false, or what is wrong. Everything a condition may contain is checked before it is parsed, because the parser recurses and
//! parses brackets more than once: length, number of words, nesting, names, and the ends of ranges.

use expr::{Context, Environment, Error, Value as Expr};
use serde_json::Value;

use super::Problem;

/// The longest condition, in bytes.
pub const LONGEST: usize = 1024;
/// The most words, numbers, strings and signs.
const MOST_TOKENS: usize = 256;
/// The deepest nesting of `(`, of `[` and of `{`.
const DEEPEST: [(char, usize); 3] = [('(', 24), ('[', 4), ('{', 2)];
/// The largest number at an end of a range.
const WIDEST: u64 = 1000;
/// The largest result that is judged: bytes of text, and values in lists and objects.
const LARGEST: usize = 16 * 1024;
/// Functions that look at every element. None stands inside another: the work would multiply.
const LOOPS: [&str; 7] = ["all", "none", "any", "one", "filter", "map", "count"];

/// Names that a condition may call.
const FUNCTIONS: [&str; 14] =
    ["asInt", "asFloat", "isNaN", "isInf", "isNil", "default", "len", "all", "none", "any", "one", "filter", "map", "count"];
/// Words of the language, and the one name that stands for a value.
const WORDS: [&str; 12] = ["result", "true", "false", "nil", "and", "or", "not", "in", "contains", "startsWith", "endsWith", "matches"];

/// A condition that can be asked.
#[derive(Debug)]
pub struct Expression {
    program: expr::Program,
    /// Elements of `result` that are named by their number.
    elements: Vec<u64>,
}

impl Expression {
    /// Reads a condition. The problem names the place.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let elements = guard(text)?;
        let program = expr::compile(text).map_err(|error| Problem(place(&error)))?;
        Ok(Self { program, elements })
    }

    /// Whether the condition holds for a result.
    pub fn holds(&self, result: &Value) -> Result<bool, Problem> {
        let size = size(result);
        if size > LARGEST {
            return Err(Problem(format!("the result is too large to be judged: {size}, at most {LARGEST}")));
        }
        // The library says nil to an element that is not there, and nil is equal to nothing: a check of no data must not pass.
        if let Value::Array(items) = result
            && let Some(missing) = self.elements.iter().find(|index| usize::try_from(**index).is_ok_and(|index| index >= items.len()))
        {
            return Err(Problem(format!("there is no result[{missing}]: the list has {} elements", items.len())));
        }
        let context: Context = [("result", convert(result))].into_iter().collect();
        match environment().run(&self.program, &context) {
            Ok(Expr::Bool(answer)) => Ok(answer),
            Ok(other) => Err(Problem(format!("the condition is neither true nor false, but {}", kind(&other)))),
            Err(error) => Err(Problem(place(&error))),
        }
    }
}

/// One line: the library prints the condition with a marker below the place.
fn place(error: &Error) -> String {
    let text = error.to_string();
    let column = text.split_once("--> 1:").and_then(|(_, rest)| rest.lines().next()).and_then(|column| column.trim().parse::<usize>().ok());
    match column {
        Some(column) => format!("cannot be read at character {column}"),
        None => text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" "),
    }
}

/// Bytes of text and values, all in all.
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

/// JSON has no infinity: the largest number stands for it.
fn unbounded(number: f64) -> f64 {
    match number {
        f64::MAX => f64::INFINITY,
        f64::MIN => f64::NEG_INFINITY,
        number => number,
    }
}

fn environment() -> &'static Environment<'static> {
    static ENVIRONMENT: std::sync::LazyLock<Environment<'static>> = std::sync::LazyLock::new(|| {
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
    });
    &ENVIRONMENT
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

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// A name or a keyword, and whether a dot stands before it.
    Name(String, bool),
    Whole(u64),
    /// Any other number, or a string.
    Literal,
    Range,
    Sign(char),
}

/// Refuses what the parser or the evaluation could choke on. Elements of `result` that are named by their number.
fn guard(text: &str) -> Result<Vec<u64>, Problem> {
    if text.trim().is_empty() {
        return Err(Problem("is empty".to_owned()));
    }
    if text.len() > LONGEST {
        return Err(Problem(format!("is longer than {LONGEST} bytes")));
    }
    let tokens = tokens(text)?;
    if tokens.len() > MOST_TOKENS {
        return Err(Problem(format!("has more than {MOST_TOKENS} words and signs")));
    }
    nesting(&tokens)?;
    loops(&tokens)?;
    for (index, (at, token)) in tokens.iter().enumerate() {
        let neighbour = |offset: isize| index.checked_add_signed(offset).and_then(|index| tokens.get(index)).map(|(_, token)| token);
        let called = neighbour(1) == Some(&Token::Sign('('));
        match token {
            Token::Name(name, true) if called => return Err(Problem(format!("at character {at}: .{name}() is not known"))),
            Token::Name(name, false) if called && !FUNCTIONS.contains(&name.as_str()) && !WORDS.contains(&name.as_str()) => {
                return Err(Problem(format!("at character {at}: {name}() is not known; there are {}", FUNCTIONS.join(", "))));
            }
            Token::Name(name, false) if !called && !WORDS.contains(&name.as_str()) && neighbour(1) != Some(&Token::Sign(':')) => {
                return Err(Problem(format!("at character {at}: {name} is not known; the value is called result")));
            }
            Token::Range => {
                let narrow = |token: Option<&Token>| matches!(token, Some(Token::Whole(number)) if *number <= WIDEST);
                // Arithmetic binds closer than a range.
                let before = !matches!(neighbour(-2), Some(Token::Sign('+' | '-' | '*' | '/' | '%' | '^' | '.') | Token::Range));
                let after = matches!(
                    neighbour(2),
                    None | Some(Token::Sign(')' | ']' | '}' | ',' | '=' | '!' | '<' | '>' | '&' | '?' | ':') | Token::Name(..))
                );
                if !narrow(neighbour(-1)) || !narrow(neighbour(1)) || !before || !after {
                    return Err(Problem(format!("at character {at}: a range goes from one number to another, both at most {WIDEST}")));
                }
            }
            Token::Name(..) | Token::Whole(_) | Token::Literal | Token::Sign(_) => {}
        }
    }
    let named = tokens.windows(4).filter_map(|part| match part {
        [(_, Token::Name(name, false)), (_, Token::Sign('[')), (_, Token::Whole(index)), (_, Token::Sign(']'))] if name == "result" => {
            Some(*index)
        }
        _ => None,
    });
    // A condition that asks for the length looks after empty lists itself.
    let is_careful = tokens.iter().any(|(_, token)| matches!(token, Token::Name(name, false) if name == "len"));
    Ok(if is_careful { Vec::new() } else { named.collect() })
}

/// No function that looks at every element stands inside another.
fn loops(tokens: &[(usize, Token)]) -> Result<(), Problem> {
    let (mut depth, mut open) = (0_usize, None);
    let mut before: Option<&Token> = None;
    for (at, token) in tokens {
        match token {
            Token::Sign('(') => {
                depth += 1;
                let begins = matches!(before, Some(Token::Name(name, false)) if LOOPS.contains(&name.as_str()));
                if begins && open.is_some() {
                    return Err(Problem(format!("at character {at}: {} do not stand in one another", LOOPS.join(", "))));
                }
                if begins {
                    open = Some(depth);
                }
            }
            Token::Sign(')') => {
                if open == Some(depth) {
                    open = None;
                }
                depth = depth.saturating_sub(1);
            }
            Token::Name(..) | Token::Whole(_) | Token::Literal | Token::Range | Token::Sign(_) => {}
        }
        before = Some(token);
    }
    Ok(())
}

fn nesting(tokens: &[(usize, Token)]) -> Result<(), Problem> {
    let mut open: Vec<char> = Vec::new();
    for (at, token) in tokens {
        match token {
            Token::Sign(sign @ ('(' | '[' | '{')) => {
                open.push(*sign);
                let most = DEEPEST.iter().find(|(bracket, _)| bracket == sign).map_or(0, |(_, most)| *most);
                if open.iter().filter(|bracket| *bracket == sign).count() > most {
                    return Err(Problem(format!("at character {at}: more than {most} {sign} in one another")));
                }
            }
            Token::Sign(sign @ (')' | ']' | '}')) => {
                let expected = match sign {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                if open.pop() != Some(expected) {
                    return Err(Problem(format!("at character {at}: {sign} closes nothing")));
                }
            }
            Token::Name(..) | Token::Whole(_) | Token::Literal | Token::Range | Token::Sign(_) => {}
        }
    }
    open.last().map_or(Ok(()), |bracket| Err(Problem(format!("{bracket} is not closed"))))
}

/// Words and signs with their place, counted from 1.
fn tokens(text: &str) -> Result<Vec<(usize, Token)>, Problem> {
    let letters: Vec<char> = text.chars().collect();
    let letter = |at: usize| letters.get(at).copied();
    let (mut tokens, mut at) = (Vec::new(), 0);
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    while let Some(first) = letter(at) {
        let begin = at;
        let run = |from: usize, belongs: &dyn Fn(char) -> bool| (from..).find(|at| !letter(*at).is_some_and(belongs)).unwrap_or(from);
        let token = match first {
            ' ' | '\t' | '\r' | '\n' => {
                at += 1;
                continue;
            }
            '"' | '\'' | '`' => {
                at = end_of_string(&letters, at).ok_or_else(|| Problem(format!("at character {}: a string is not closed", begin + 1)))?;
                Token::Literal
            }
            '/' if matches!(letter(at + 1), Some('/' | '*')) => {
                return Err(Problem(format!("at character {}: there are no comments in conditions", at + 1)));
            }
            '.' if letter(at + 1) == Some('.') => {
                at += 2;
                Token::Range
            }
            '0'..='9' => {
                at = run(at, &|letter| is_name(letter));
                // A fraction, unless the dot begins a range.
                if letter(at) == Some('.') && letter(at + 1) != Some('.') {
                    at = run(at + 1, &|letter| is_name(letter));
                }
                let digits: String = letters.get(begin..at).unwrap_or_default().iter().filter(|letter| **letter != '_').collect();
                digits.parse().map_or(Token::Literal, Token::Whole)
            }
            '#' => {
                at = run(at + 1, &|letter| is_name(letter));
                Token::Literal
            }
            first if first.is_ascii_alphabetic() || first == '_' || first == '$' => {
                at = run(at + 1, &|letter| is_name(letter));
                let dotted = matches!(tokens.last(), Some((_, Token::Sign('.'))));
                Token::Name(letters.get(begin..at).unwrap_or_default().iter().collect(), dotted)
            }
            sign => {
                at += 1;
                Token::Sign(sign)
            }
        };
        tokens.push((begin + 1, token));
    }
    Ok(tokens)
}

fn end_of_string(letters: &[char], begin: usize) -> Option<usize> {
    let quote = *letters.get(begin)?;
    let mut at = begin + 1;
    loop {
        match *letters.get(at)? {
            '\\' if quote != '`' => at += 2,
            letter if letter == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
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
        assert_eq!(ask("len(result) == 1 and result[0] < 1", &json!([])), Ok(false), "who asks for the length gets an answer");
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
