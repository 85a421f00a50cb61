//! Applies a parsed template to a value.

use serde_json::Value;

use super::{Comparison, Filter, Node, Problem, Slice, To};

/// The most matches of one action, and steps on the way to them.
const MAX_STEPS: usize = 100_000;
/// Bytes of text whose comparison counts as one step.
const BYTES_PER_STEP: usize = 64;

type Found<'a> = Vec<Match<'a>>;

/// A value that was found, or that the template itself contains.
#[derive(Debug, Clone)]
enum Match<'a> {
    There(&'a Value),
    Said(Value),
}

impl Match<'_> {
    fn value(&self) -> &Value {
        match self {
            Match::There(value) => value,
            Match::Said(value) => value,
        }
    }
}

/// Applies a template to a value, and returns the text.
pub(super) fn render(nodes: &[Node], value: &Value) -> Result<String, Problem> {
    let mut walker = Walker { steps: 0, text: String::new() };
    walker.block(nodes, value)?;
    Ok(walker.text)
}

/// What one action finds.
pub(super) fn find(action: &[Node], value: &Value) -> Result<Value, Problem> {
    let mut walker = Walker { steps: 0, text: String::new() };
    let found = walker.list(vec![Match::There(value)], action)?;
    // Every match is copied.
    found.iter().try_for_each(|one| walker.weigh(one.value()))?;
    match found.as_slice() {
        [one] => Ok(one.value().clone()),
        several => Ok(several.iter().map(|one| one.value().clone()).collect()),
    }
}

struct Walker {
    steps: usize,
    text: String,
}

impl Walker {
    /// Prints nodes up to the end of the current range. Returns how many nodes that were.
    fn block(&mut self, nodes: &[Node], value: &Value) -> Result<usize, Problem> {
        let mut at = 0;
        while let Some(node) = nodes.get(at) {
            at += 1;
            let Node::List(action) = node else {
                if let Node::Text(text) = node {
                    self.text.push_str(text);
                    self.step(1)?;
                }
                continue;
            };
            if action.contains(&Node::End) {
                return Ok(at);
            }
            let found = self.list(vec![Match::There(value)], action)?;
            if action.contains(&Node::Range) {
                let inside = nodes.get(at..).unwrap_or_default();
                for one in &found {
                    self.block(inside, one.value())?;
                }
                at += past_end(inside);
                continue;
            }
            for (number, one) in found.iter().enumerate() {
                if number > 0 {
                    self.text.push(' ');
                }
                self.text.push_str(&printed(one.value()));
                self.step(1)?;
            }
        }
        Ok(at)
    }

    /// Counts a value and everything in it.
    fn weigh(&mut self, value: &Value) -> Result<(), Problem> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.weigh(item))?,
            Value::Object(fields) => fields.values().try_for_each(|field| self.weigh(field))?,
            Value::String(text) => self.step(text.len() / BYTES_PER_STEP)?,
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        self.step(1)
    }

    /// The children of a match, counted before they are listed.
    fn children<'a>(&mut self, one: &Match<'a>) -> Result<Found<'a>, Problem> {
        self.step(match one.value() {
            Value::Array(items) => items.len(),
            Value::Object(fields) => fields.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        })?;
        Ok(children(one))
    }

    fn step(&mut self, count: usize) -> Result<(), Problem> {
        self.steps = self.steps.saturating_add(count);
        if self.steps > MAX_STEPS || self.text.len() > MAX_STEPS * 10 {
            return Err(Problem("too much is matched".to_owned()));
        }
        Ok(())
    }

    fn list<'a>(&mut self, mut found: Found<'a>, nodes: &[Node]) -> Result<Found<'a>, Problem> {
        for node in nodes {
            found = self.node(found, node)?;
            self.step(found.len().max(1))?;
        }
        Ok(found)
    }

    fn node<'a>(&mut self, input: Found<'a>, node: &Node) -> Result<Found<'a>, Problem> {
        match node {
            Node::Text(text) => Ok(vec![Match::Said(Value::String(text.clone()))]),
            Node::Number(number) => Ok(vec![Match::Said(Value::Number(number.clone()))]),
            Node::Bool(value) => Ok(vec![Match::Said(Value::Bool(*value))]),
            Node::List(nodes) => self.list(input, nodes),
            Node::Field(name) => {
                self.step(input.len())?;
                let found: Found = input.iter().filter_map(|one| child(one, |value| value.get(name.as_str()))).collect();
                if found.is_empty() && !input.is_empty() { Err(Problem(format!("{name} is not found"))) } else { Ok(found) }
            }
            Node::Wildcard => {
                let mut all = Vec::new();
                for one in &input {
                    all.extend(self.children(one)?);
                    self.step(1)?;
                }
                Ok(all)
            }
            Node::Recursive => {
                let mut all = Vec::new();
                input.into_iter().try_for_each(|one| self.descend(one, &mut all))?;
                Ok(all)
            }
            Node::Slice(slice) => {
                let mut all = Vec::new();
                for one in &input {
                    let part = cut(one, *slice)?;
                    self.step(part.len())?;
                    all.extend(part);
                }
                Ok(all)
            }
            Node::Union(parts) => {
                let mut all = Vec::new();
                for part in parts {
                    self.step(input.len())?;
                    all.extend(self.list(input.clone(), part)?);
                }
                Ok(all)
            }
            Node::Filter(filter) => self.filter(&input, filter),
            Node::Range | Node::End => Ok(input),
        }
    }

    fn descend<'a>(&mut self, one: Match<'a>, all: &mut Found<'a>) -> Result<(), Problem> {
        self.step(1)?;
        let below = self.children(&one)?;
        if !below.is_empty() {
            all.push(one);
            below.into_iter().try_for_each(|child| self.descend(child, all))?;
        }
        Ok(())
    }

    fn filter<'a>(&mut self, input: &[Match<'a>], filter: &Filter) -> Result<Found<'a>, Problem> {
        let mut kept = Vec::new();
        for one in input {
            if !one.value().is_array() {
                return Err(Problem(format!("{} is no list and cannot be filtered", shortened(one.value()))));
            }
            for element in self.children(one)? {
                let left = self.list(vec![element.clone()], &filter.left);
                let Some((comparison, right)) = &filter.test else {
                    if left.is_ok_and(|found| !found.is_empty()) {
                        kept.push(element);
                    }
                    // A missing path is an answer; too much work is an error.
                    self.step(1)?;
                    continue;
                };
                let right = self.list(vec![element.clone()], right)?;
                match (left?.as_slice(), right.as_slice()) {
                    ([], _) | (_, []) => {}
                    ([left], [right]) => {
                        self.step(compared(left.value(), right.value()) / BYTES_PER_STEP)?;
                        if holds(left.value(), *comparison, right.value())? {
                            kept.push(element);
                        }
                    }
                    _ => return Err(Problem("only one value can be compared at a time".to_owned())),
                }
            }
        }
        Ok(kept)
    }
}

/// How many nodes there are up to the end of the range that has started, including that end.
fn past_end(nodes: &[Node]) -> usize {
    let mut open = 1_usize;
    for (at, node) in nodes.iter().enumerate() {
        if let Node::List(action) = node {
            open += action.iter().filter(|node| **node == Node::Range).count();
            open = open.saturating_sub(action.iter().filter(|node| **node == Node::End).count());
            if open == 0 {
                return at + 1;
            }
        }
    }
    nodes.len()
}

fn child<'a>(one: &Match<'a>, pick: impl FnOnce(&Value) -> Option<&Value>) -> Option<Match<'a>> {
    match one {
        // The two arms differ in the lifetime of what they find.
        Match::There(value) => {
            let value: &'a Value = value;
            pick(value).map(Match::There)
        }
        Match::Said(value) => pick(value).cloned().map(Match::Said),
    }
}

fn children<'a>(one: &Match<'a>) -> Found<'a> {
    match one {
        Match::There(Value::Array(items)) => items.iter().map(Match::There).collect(),
        Match::There(Value::Object(fields)) => fields.values().map(Match::There).collect(),
        Match::There(_) | Match::Said(_) => Vec::new(),
    }
}

fn cut<'a>(one: &Match<'a>, slice: Slice) -> Result<Found<'a>, Problem> {
    let Match::There(Value::Array(items)) = one else {
        // null has no elements.
        return if one.value().is_null() { Ok(Vec::new()) } else { Err(Problem(format!("{} is no list", shortened(one.value())))) };
    };
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let from_end = |number: i64| if number < 0 { number.saturating_add(length) } else { number };
    let from = from_end(slice.from.unwrap_or_default());
    let to = match slice.to {
        To::Single => from.saturating_add(1),
        To::Open => length,
        To::Before(end) => from_end(end),
    };
    if from == to {
        return Ok(Vec::new());
    }
    let outside = |index: i64| Err(Problem(format!("index {index} is outside a list of {length}")));
    if from < 0 || from >= length {
        return outside(from);
    }
    if to < 0 || to > length {
        return outside(to.saturating_sub(1));
    }
    if from > to {
        return Err(Problem(format!("a slice from {from} to {to} runs backwards")));
    }
    let step = match slice.step {
        Some(step) if step <= 0 => return Err(Problem("the step of a slice must be above 0".to_owned())),
        step => usize::try_from(step.unwrap_or(1)).unwrap_or(usize::MAX),
    };
    let range = usize::try_from(from).unwrap_or_default()..usize::try_from(to).unwrap_or_default();
    Ok(items.get(range).unwrap_or_default().iter().step_by(step).map(Match::There).collect())
}

/// How many bytes are read to compare two values.
fn compared(left: &Value, right: &Value) -> usize {
    let length = |value: &Value| value.as_str().map_or(0, str::len);
    length(left).min(length(right))
}

fn holds(left: &Value, comparison: Comparison, right: &Value) -> Result<bool, Problem> {
    use std::cmp::Ordering;
    let order = match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64().partial_cmp(&right.as_f64()),
        },
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Bool(left), Value::Bool(right)) if matches!(comparison, Comparison::Equal | Comparison::NotEqual) => Some(left.cmp(right)),
        _ => None,
    };
    let Some(order) = order else {
        return Err(Problem(format!("{} and {} cannot be compared like that", shortened(left), shortened(right))));
    };
    Ok(match comparison {
        Comparison::Equal => order == Ordering::Equal,
        Comparison::NotEqual => order != Ordering::Equal,
        Comparison::Less => order == Ordering::Less,
        Comparison::LessOrEqual => order != Ordering::Greater,
        Comparison::Greater => order == Ordering::Greater,
        Comparison::GreaterOrEqual => order != Ordering::Less,
    })
}

fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    let short: String = text.chars().take(40).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}
