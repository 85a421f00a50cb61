//! Regular expressions of conditions: compiled here, within limits, and referred to by their number.
//!
//! `result matches '^ok'` becomes a call of [`FUNCTION`] before the condition is parsed, because the library would
//! compile any pattern at any size.

use regex::{Regex, RegexBuilder};

use super::Problem;
use super::guard::{Token, Word};

/// The function that replaces `matches`. Conditions cannot call it themselves: it is not among their functions.
pub(super) const FUNCTION: &str = "fitsPattern";
/// The most patterns of one condition.
const MAX_PATTERNS: usize = 4;
/// The size limits of a compiled pattern and of its cache, in bytes.
const MAX_PATTERN_BYTES: usize = 64 * 1024;
const MAX_CACHE_BYTES: usize = 256 * 1024;

/// The patterns of a condition.
#[derive(Debug)]
pub(super) struct Patterns(Vec<Regex>);

impl Patterns {
    /// Whether a text matches the pattern of this number.
    pub(super) fn fits(&self, number: i64, text: &str) -> bool {
        usize::try_from(number).ok().and_then(|number| self.0.get(number)).is_some_and(|pattern| pattern.is_match(text))
    }
}

/// The condition with its patterns replaced, and the patterns. None if it has no pattern.
pub(super) fn taken_out(text: &str, words: &[Word]) -> Result<Option<(String, Patterns)>, Problem> {
    let is_operator = |word: &Word| matches!(&word.token, Token::Name(name, false) if name == "matches");
    let letters: Vec<char> = text.chars().collect();
    let (mut patterns, mut edits) = (Vec::new(), Vec::new());
    for (index, word) in words.iter().enumerate().filter(|(_, word)| is_operator(word)) {
        if patterns.len() == MAX_PATTERNS {
            return Err(Problem(format!("at character {}: more than {MAX_PATTERNS} patterns", word.at)));
        }
        let literal = words.get(index + 1).filter(|next| next.token == Token::Text && is_end(words.get(index + 2..).unwrap_or_default()));
        let literal = literal.ok_or_else(|| Problem(format!("at character {}: matches needs a pattern in quotes", word.at)))?;
        let quoted: String = letters.get(literal.at - 1..literal.end).unwrap_or_default().iter().collect();
        let start = operand(words.get(..index).unwrap_or_default(), word.at)?;
        edits.push((start - 1, start - 1, format!("{FUNCTION}(")));
        edits.push((word.at - 1, literal.end, format!(", {})", patterns.len())));
        patterns.push(compiled(&quoted).map_err(|problem| Problem(format!("at character {}: {}", literal.at, problem.0)))?);
    }
    if patterns.is_empty() {
        return Ok(None);
    }
    edits.sort_by_key(|(from, ..)| *from);
    let (mut rewritten, mut at) = (String::with_capacity(text.len()), 0);
    for (from, to, with) in edits {
        rewritten.extend(letters.get(at..from).unwrap_or_default());
        rewritten.push_str(&with);
        at = to;
    }
    rewritten.extend(letters.get(at..).unwrap_or_default());
    Ok(Some((rewritten, Patterns(patterns))))
}

/// Whether the pattern ends before these tokens.
fn is_end(rest: &[Word]) -> bool {
    let second = rest.get(1).map(|word| &word.token);
    match rest.first().map(|word| &word.token) {
        None | Some(Token::Sign(')' | ']' | '}' | ',' | ':' | '&' | '=' | '!')) => true,
        Some(Token::Sign('|')) => second == Some(&Token::Sign('|')),
        Some(Token::Sign('?')) => !matches!(second, Some(Token::Sign('.' | '?'))),
        Some(Token::Name(name, false)) => name == "and" || name == "or",
        Some(Token::Name(..) | Token::Whole(_) | Token::Text | Token::Literal | Token::Range | Token::Sign(_)) => false,
    }
}

/// Where the operand before `matches` starts.
fn operand(before: &[Word], at: usize) -> Result<usize, Problem> {
    let (mut depth, mut start) = (0_usize, at);
    for (index, word) in before.iter().enumerate().rev() {
        let last = index.checked_sub(1).and_then(|index| before.get(index)).map(|word| &word.token);
        let next = before.get(index + 1).map(|word| &word.token);
        match &word.token {
            Token::Sign(')' | ']' | '}') => depth += 1,
            Token::Sign('(' | '[' | '{') if depth > 0 => depth -= 1,
            _ if depth > 0 => {}
            Token::Sign('(' | '[' | '{' | ',' | ':' | '&') => break,
            Token::Sign('|') if last == Some(&Token::Sign('|')) => break,
            Token::Sign('?') if !matches!(next, Some(Token::Sign('.' | '?'))) && last != Some(&Token::Sign('?')) => break,
            Token::Name(name, false) if name == "and" || name == "or" => break,
            Token::Name(name, false) if OPERATORS.contains(&name.as_str()) => return Err(unclear(at)),
            Token::Sign('=' | '!' | '<' | '>' | '|') => return Err(unclear(at)),
            Token::Name(..) | Token::Whole(_) | Token::Text | Token::Literal | Token::Range | Token::Sign(_) => {}
        }
        start = word.at;
    }
    if start == at { Err(unclear(at)) } else { Ok(start) }
}

/// Operators of the same or a lower precedence than `matches`, and `not`, whose precedence is easily mistaken.
const OPERATORS: [&str; 6] = ["not", "in", "contains", "startsWith", "endsWith", "matches"];

fn unclear(at: usize) -> Problem {
    Problem(format!("at character {at}: write brackets around the text before matches, or around all of it"))
}

/// The compiled pattern of a string literal.
fn compiled(quoted: &str) -> Result<Regex, Problem> {
    let literal = expr::eval(quoted, &expr::Context::default());
    let Ok(expr::Value::String(pattern)) = literal else { return Err(Problem("the pattern is no text".to_owned())) };
    let built = RegexBuilder::new(&pattern).size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_CACHE_BYTES).nest_limit(32).build();
    built.map_err(|error| {
        if matches!(error, regex::Error::CompiledTooBig(_)) {
            return Problem(format!("the pattern is too large: compiled, it has more than {MAX_PATTERN_BYTES} bytes"));
        }
        // The last line is the message; the lines before it mark the position.
        Problem(format!("the pattern cannot be read: {}", error.to_string().lines().last().unwrap_or_default().trim()))
    })
}
