//! Parses a template, by the grammar of Kubernetes' client library.

use serde_json::Number;

use super::{Comparison, Filter, Node, Problem, Slice, To};

/// How deep filters and unions may be nested.
const MAX_DEPTH: usize = 8;

type Parsed<T> = Result<T, Problem>;

fn problem<T>(text: impl Into<String>) -> Parsed<T> {
    Err(Problem(text.into()))
}

/// A whole template: text and `{…}`.
pub(super) fn template(text: &str) -> Parsed<Vec<Node>> {
    let (mut nodes, mut rest) = (Vec::new(), text);
    let mut open_ranges = 0_usize;
    while let Some((before, after)) = rest.split_once('{') {
        if !before.is_empty() {
            nodes.push(Node::Text(before.to_owned()));
        }
        let mut reader = Reader { rest: after, depth: 0 };
        let action = reader.action(true)?;
        for node in &action {
            match node {
                Node::Range => open_ranges += 1,
                Node::End if open_ranges == 0 => return problem("{end} without {range}"),
                Node::End => open_ranges -= 1,
                Node::Text(_) | Node::Number(_) | Node::Bool(_) | Node::List(_) | Node::Field(_) | Node::Wildcard => {}
                Node::Recursive | Node::Slice(_) | Node::Union(_) | Node::Filter(_) => {}
            }
        }
        nodes.push(Node::List(action));
        rest = reader.rest;
    }
    if open_ranges > 0 {
        return problem("{range} without {end}");
    }
    if !rest.is_empty() {
        nodes.push(Node::Text(rest.to_owned()));
    }
    Ok(nodes)
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let first = chars.next()?;
        self.rest = chars.as_str();
        Some(first)
    }

    fn take(&mut self, prefix: &str) -> bool {
        let found = self.rest.strip_prefix(prefix);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    /// Everything up to a `}` (`closed`), or all of it.
    fn action(&mut self, closed: bool) -> Parsed<Vec<Node>> {
        let mut nodes = Vec::new();
        loop {
            if closed && self.take("}") {
                return Ok(nodes);
            }
            if self.take("[?(") {
                nodes.push(self.filter()?);
                continue;
            }
            if self.take("..") {
                if nodes.last() == Some(&Node::Recursive) {
                    return problem("several `..` after one another");
                }
                nodes.push(Node::Recursive);
                if self.rest.starts_with(is_word) {
                    nodes.push(self.field());
                }
                continue;
            }
            let before = self.rest;
            match self.next() {
                None if closed => return problem("a `{` is not closed"),
                None => return Ok(nodes),
                Some('\n' | '\r') => return problem("a `{` is not closed on its line"),
                Some(' ' | '@' | '$') => {}
                Some('[') => self.array(&mut nodes)?,
                Some(quote @ ('"' | '\'')) => nodes.push(Node::Text(self.quoted(quote)?)),
                Some('.') => nodes.push(self.field()),
                Some('+' | '-' | '0'..='9') => {
                    self.rest = before;
                    nodes.push(self.number()?);
                }
                Some(first) if is_word(first) => {
                    self.rest = before;
                    nodes.push(self.word()?);
                }
                Some(other) => return problem(format!("{other:?} does not belong in a {{…}}")),
            }
        }
    }

    fn word(&mut self) -> Parsed<Node> {
        let end = self.rest.find(|letter| !is_word(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "range" => Ok(Node::Range),
            "end" => Ok(Node::End),
            "true" => Ok(Node::Bool(true)),
            "false" => Ok(Node::Bool(false)),
            other => problem(format!("{other:?} is no keyword: a field begins with a dot")),
        }
    }

    fn number(&mut self) -> Parsed<Node> {
        let end = self.rest.find(|letter: char| !matches!(letter, '+' | '-' | '.' | '0'..='9')).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let whole = text.parse::<i64>().ok().map(Number::from);
        let number = whole.or_else(|| Number::from_f64(text.parse().ok()?));
        number.map(Node::Number).map_or_else(|| problem(format!("{text:?} is no number")), Ok)
    }

    /// A field's name up to a delimiter; a backslash makes the next character a part of it.
    fn field(&mut self) -> Node {
        let mut name = String::new();
        let before = self.rest;
        loop {
            let here = self.rest;
            match self.next() {
                Some('\\') => name.extend(self.next()),
                Some(letter) if !is_terminator(letter) => name.push(letter),
                Some(_) | None => {
                    self.rest = here;
                    break;
                }
            }
        }
        let written = before.get(..before.len() - self.rest.len()).unwrap_or_default();
        if written == "*" { Node::Wildcard } else { Node::Field(name) }
    }

    fn quoted(&mut self, quote: char) -> Parsed<String> {
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return problem("a string is not closed"),
                Some('\\') => match self.next() {
                    Some('n') => text.push('\n'),
                    Some('t') => text.push('\t'),
                    Some('r') => text.push('\r'),
                    Some(same @ ('\\' | '\'' | '"')) => text.push(same),
                    other => return problem(format!("\\{} is no escape", other.map_or(String::new(), String::from))),
                },
                Some(letter) if letter == quote => return Ok(text),
                Some(letter) => text.push(letter),
            }
        }
    }

    /// `[…]`: an index, a slice, a key, or several of them.
    fn array(&mut self, nodes: &mut Vec<Node>) -> Parsed<()> {
        let Some((inside, rest)) = self.rest.split_once(']').filter(|(inside, _)| !inside.contains('\n')) else {
            return problem("a `[` is not closed");
        };
        self.rest = rest;
        if inside.contains(',') {
            let parts = inside.split(',').map(|part| self.inner(&format!("[{}]", part.trim_matches(' '))));
            nodes.push(Node::Union(parts.collect::<Parsed<_>>()?));
            return Ok(());
        }
        let key = inside.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).filter(|key| !key.contains('\''));
        if let Some(key) = key {
            nodes.extend(self.inner(&format!(".{key}"))?);
            return Ok(());
        }
        nodes.push(Node::Slice(slice(if inside == "*" { ":" } else { inside })?));
        Ok(())
    }

    /// `[?(…)]`, of which `[?(` is already read.
    fn filter(&mut self) -> Parsed<Node> {
        let (mut quote, mut end, mut escaped) = (None, None, false);
        for (at, letter) in self.rest.char_indices() {
            match (letter, quote) {
                ('\n', _) => break,
                (_, Some(_)) if escaped => escaped = false,
                ('\\', Some(_)) => escaped = true,
                ('"' | '\'', None) => quote = Some(letter),
                (letter, Some(open)) if letter == open => quote = None,
                (')', None) => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
        }
        let Some((inside, rest)) = end.and_then(|end| self.rest.split_at_checked(end)) else {
            return problem("a filter is not closed");
        };
        self.rest = rest;
        if !self.take(")]") {
            return problem("a filter ends with `)]`");
        }
        let Some(at) = inside.find(['!', '<', '>', '=']).filter(|at| *at > 0) else {
            return Ok(Node::Filter(Box::new(Filter { left: self.inner(inside)?, test: None })));
        };
        let (left, rest) = inside.split_at(at);
        let end = rest.find(|letter| !matches!(letter, '!' | '<' | '>' | '=')).unwrap_or(rest.len());
        let (operator, right) = rest.split_at(end);
        let comparison = match operator {
            "==" => Comparison::Equal,
            "!=" => Comparison::NotEqual,
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            other => return problem(format!("{other} is no comparison of a filter")),
        };
        if right.trim().is_empty() {
            return problem(format!("nothing follows {operator}"));
        }
        Ok(Node::Filter(Box::new(Filter { left: self.inner(left)?, test: Some((comparison, self.inner(right)?)) })))
    }

    fn inner(&self, text: &str) -> Parsed<Vec<Node>> {
        if self.depth >= MAX_DEPTH {
            return problem(format!("more than {MAX_DEPTH} brackets in one another"));
        }
        let nodes = Reader { rest: text, depth: self.depth + 1 }.action(false)?;
        if nodes.iter().any(|node| matches!(node, Node::Range | Node::End)) {
            return problem("{range} and {end} stand by themselves");
        }
        Ok(nodes)
    }
}

fn slice(text: &str) -> Parsed<Slice> {
    let number = |part: &str| part.parse::<i64>().map_err(|_| Problem(format!("[{text}] is no index, slice or quoted key")));
    let parts: Vec<&str> = text.split(':').collect();
    let optional = |part: Option<&&str>| part.filter(|part| !part.is_empty()).map(|part| number(part)).transpose();
    let from = optional(parts.first())?;
    let to = match parts.get(1) {
        None => To::Single,
        Some(&"") => To::Open,
        Some(end) => To::Before(number(end)?),
    };
    if parts.len() > 3 || from.is_none() && to == To::Single {
        return problem(format!("[{text}] is no index, slice or quoted key"));
    }
    Ok(Slice { from, to, step: optional(parts.get(2))? })
}

fn is_word(letter: char) -> bool {
    letter == '_' || letter.is_alphanumeric()
}

fn is_terminator(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}
