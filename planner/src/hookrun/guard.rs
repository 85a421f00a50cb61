//! What a condition may contain: validated before it is parsed.

use super::Problem;

/// The longest condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 1024;
/// The most tokens: words, numbers, strings and signs.
const MAX_TOKENS: usize = 256;
/// The deepest nesting of `(`, of `[` and of `{`.
const MAX_DEPTH: [(char, usize); 3] = [('(', 24), ('[', 4), ('{', 2)];
/// The largest number at either end of a range.
const MAX_RANGE_END: u64 = 1000;
/// How often `result` may be named, and the most elements (`#`) and fractions.
const MAX_RESULTS: usize = 16;
const MAX_ELEMENTS: usize = 32;
/// Functions that visit every element. They are not nested: the work would multiply.
const LOOPS: [&str; 7] = ["all", "none", "any", "one", "filter", "map", "count"];

/// Names that a condition may call.
const FUNCTIONS: [&str; 14] =
    ["asInt", "asFloat", "isNaN", "isInf", "isNil", "default", "len", "all", "none", "any", "one", "filter", "map", "count"];
/// Keywords, and the name of the value.
const WORDS: [&str; 12] = ["result", "true", "false", "nil", "and", "or", "not", "in", "contains", "startsWith", "endsWith", "matches"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or a keyword, and whether a dot stands before it.
    Name(String, bool),
    Whole(u64),
    /// A string, including its quotes.
    Text,
    /// Any other number, or the element `#` that a function visits.
    Literal,
    Range,
    Sign(char),
}

/// A token and its position: its first character, counted from 1, and its last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) token: Token,
}

/// Refuses a condition that would cost the parser or the evaluation too much. Returns its tokens, and the elements of
/// `result` that it names by their index.
pub(super) fn guard(text: &str) -> Result<(Vec<Word>, Vec<u64>), Problem> {
    if text.trim().is_empty() {
        return Err(Problem("is empty".to_owned()));
    }
    if text.len() > MAX_CONDITION_BYTES {
        return Err(Problem(format!("is longer than {MAX_CONDITION_BYTES} bytes")));
    }
    let tokens = tokens(text)?;
    if tokens.len() > MAX_TOKENS {
        return Err(Problem(format!("has more than {MAX_TOKENS} words and signs")));
    }
    nesting(&tokens)?;
    loops(&tokens)?;
    repeats(&tokens)?;
    for (index, Word { at, token, .. }) in tokens.iter().enumerate() {
        let neighbour = |offset: isize| index.checked_add_signed(offset).and_then(|index| tokens.get(index)).map(|word| &word.token);
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
                let narrow = |token: Option<&Token>| matches!(token, Some(Token::Whole(number)) if *number <= MAX_RANGE_END);
                // Arithmetic binds closer than a range.
                let before = !matches!(neighbour(-2), Some(Token::Sign('+' | '-' | '*' | '/' | '%' | '^' | '.') | Token::Range));
                let after = matches!(
                    neighbour(2),
                    None | Some(Token::Sign(')' | ']' | '}' | ',' | '=' | '!' | '<' | '>' | '&' | '?' | ':') | Token::Name(..))
                );
                if !narrow(neighbour(-1)) || !narrow(neighbour(1)) || !before || !after {
                    return Err(Problem(format!(
                        "at character {at}: a range goes from one number to another, both at most {MAX_RANGE_END}"
                    )));
                }
            }
            Token::Name(..) | Token::Whole(_) | Token::Text | Token::Literal | Token::Sign(_) => {}
        }
    }
    let named = tokens.windows(4).filter_map(|part| match part {
        [
            Word { token: Token::Name(name, false), .. },
            Word { token: Token::Sign('['), .. },
            Word { token: Token::Whole(index), .. },
            Word { token: Token::Sign(']'), .. },
        ] if name == "result" => Some(*index),
        _ => None,
    });
    // A condition that asks for the length handles empty lists itself.
    let is_careful = tokens.iter().any(|word| matches!(&word.token, Token::Name(name, false) if name == "len"));
    let named = if is_careful { Vec::new() } else { named.collect() };
    Ok((tokens, named))
}

/// Limits what a condition builds to the size of a few results: `result` and `#` can be large texts, and each place
/// where they are named makes another copy.
fn repeats(tokens: &[Word]) -> Result<(), Problem> {
    let count = |is_it: &dyn Fn(&Token) -> bool| tokens.iter().filter(|word| is_it(&word.token)).count();
    let results = count(&|token| matches!(token, Token::Name(name, false) if name == "result"));
    let elements = count(&|token| *token == Token::Literal);
    if results > MAX_RESULTS || elements > MAX_ELEMENTS {
        return Err(Problem(format!("names result more than {MAX_RESULTS} times, or more than {MAX_ELEMENTS} elements and fractions")));
    }
    let (mut open, mut is_map) = (Vec::new(), false);
    for (index, word) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|index| tokens.get(index)).map(|word| &word.token);
        match &word.token {
            Token::Sign('(') => open.push(matches!(before, Some(Token::Name(name, false)) if name == "map")),
            Token::Sign('{') => {
                open.push(false);
                is_map |= open.iter().any(|is_map| *is_map);
            }
            Token::Sign(')' | '}') => {
                open.pop();
                is_map &= open.iter().any(|is_map| *is_map);
            }
            Token::Name(name, false) if name == "result" && is_map => {
                return Err(Problem(format!("at character {}: inside map, # stands for the element, and result has no place", word.at)));
            }
            Token::Name(..) | Token::Whole(_) | Token::Text | Token::Literal | Token::Range | Token::Sign(_) => {}
        }
    }
    Ok(())
}

/// Functions that visit every element are not nested.
fn loops(tokens: &[Word]) -> Result<(), Problem> {
    let (mut depth, mut open) = (0_usize, None);
    let mut before: Option<&Token> = None;
    for Word { at, token, .. } in tokens {
        match token {
            Token::Sign('(') => {
                depth += 1;
                let is_loop = matches!(before, Some(Token::Name(name, false)) if LOOPS.contains(&name.as_str()));
                if is_loop && open.is_some() {
                    return Err(Problem(format!("at character {at}: {} do not stand in one another", LOOPS.join(", "))));
                }
                if is_loop {
                    open = Some(depth);
                }
            }
            Token::Sign(')') => {
                if open == Some(depth) {
                    open = None;
                }
                depth = depth.saturating_sub(1);
            }
            Token::Name(..) | Token::Whole(_) | Token::Text | Token::Literal | Token::Range | Token::Sign(_) => {}
        }
        before = Some(token);
    }
    Ok(())
}

fn nesting(tokens: &[Word]) -> Result<(), Problem> {
    let mut open: Vec<char> = Vec::new();
    for Word { at, token, .. } in tokens {
        match token {
            Token::Sign(sign @ ('(' | '[' | '{')) => {
                open.push(*sign);
                let most = MAX_DEPTH.iter().find(|(bracket, _)| bracket == sign).map_or(0, |(_, most)| *most);
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
            Token::Name(..) | Token::Whole(_) | Token::Text | Token::Literal | Token::Range | Token::Sign(_) => {}
        }
    }
    open.last().map_or(Ok(()), |bracket| Err(Problem(format!("{bracket} is not closed"))))
}

/// The tokens of a text with their positions, counted from 1.
fn tokens(text: &str) -> Result<Vec<Word>, Problem> {
    let letters: Vec<char> = text.chars().collect();
    let letter = |at: usize| letters.get(at).copied();
    let (mut tokens, mut at) = (Vec::new(), 0);
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    while let Some(first) = letter(at) {
        let start = at;
        let run = |from: usize, belongs: &dyn Fn(char) -> bool| (from..).find(|at| !letter(*at).is_some_and(belongs)).unwrap_or(from);
        let token = match first {
            ' ' | '\t' | '\r' | '\n' => {
                at += 1;
                continue;
            }
            '"' | '\'' | '`' => {
                at = end_of_string(&letters, at).ok_or_else(|| Problem(format!("at character {}: a string is not closed", start + 1)))?;
                Token::Text
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
                // A fraction, unless the dot is the first of a range.
                if letter(at) == Some('.') && letter(at + 1) != Some('.') {
                    at = run(at + 1, &|letter| is_name(letter));
                }
                let digits: String = letters.get(start..at).unwrap_or_default().iter().filter(|letter| **letter != '_').collect();
                digits.parse().map_or(Token::Literal, Token::Whole)
            }
            '#' => {
                at = run(at + 1, &|letter| is_name(letter));
                Token::Literal
            }
            first if first.is_ascii_alphabetic() || first == '_' || first == '$' => {
                at = run(at + 1, &|letter| is_name(letter));
                let dotted = matches!(tokens.last(), Some(Word { token: Token::Sign('.'), .. }));
                Token::Name(letters.get(start..at).unwrap_or_default().iter().collect(), dotted)
            }
            sign => {
                at += 1;
                Token::Sign(sign)
            }
        };
        tokens.push(Word { at: start + 1, end: at, token });
    }
    Ok(tokens)
}

fn end_of_string(letters: &[char], start: usize) -> Option<usize> {
    let quote = *letters.get(start)?;
    let mut at = start + 1;
    loop {
        match *letters.get(at)? {
            '\\' if quote != '`' => at += 2,
            letter if letter == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}
