//! JSONPath as Kubernetes writes it: text with `{…}` actions, as in `kubectl get -o jsonpath`.
//!
//! In: a template and a JSON value. Out: text. Several matches of an action are joined by a space; objects and lists
//! are printed as JSON. A missing key is an error. Unlike with kubectl, a template without any action is an error (it
//! would print itself), and numbers compare by value. Length, nesting and the number of matches are limited.

mod parse;
mod walk;

use serde_json::Value;

/// The longest template.
pub const MAX_TEMPLATE_BYTES: usize = 1024;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    nodes: Vec<Node>,
}

/// Why a template is invalid, or cannot be applied to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(pub String);

impl std::fmt::Display for Problem {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// Literal text; inside an action a quoted string.
    Text(String),
    Number(serde_json::Number),
    Bool(bool),
    /// One `{…}`, or a part of one.
    List(Vec<Node>),
    /// A value of an object.
    Field(String),
    /// Every value of an object or a list.
    Wildcard,
    /// All descendants.
    Recursive,
    /// A part of a list.
    Slice(Slice),
    Union(Vec<Vec<Node>>),
    Filter(Box<Filter>),
    Range,
    End,
}

/// `[from:to:step]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    from: Option<i64>,
    to: To,
    step: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    /// `[3]`: one element.
    Single,
    /// `[3:]`.
    Open,
    Before(i64),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Vec<Node>,
    test: Option<(Comparison, Vec<Node>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Parses a template.
    pub fn parse(template: &str) -> Result<Self, Problem> {
        if template.len() > MAX_TEMPLATE_BYTES {
            return Err(Problem(format!("longer than {MAX_TEMPLATE_BYTES} bytes")));
        }
        let nodes = parse::template(template)?;
        if !nodes.iter().any(|node| matches!(node, Node::List(_))) {
            return Err(Problem(format!("no {{…}} in it: write {{{}}}", suggestion(template))));
        }
        Ok(Self { nodes })
    }

    /// Applies the template to a value, and returns the text.
    pub fn render(&self, value: &Value) -> Result<String, Problem> {
        walk::render(&self.nodes, value)
    }
}

impl JsonPath {
    /// The value that a template with a single action finds; several as a list. For any other template its text.
    pub fn find(&self, value: &Value) -> Result<Value, Problem> {
        match self.nodes.as_slice() {
            [Node::List(action)] => walk::find(action, value),
            _ => self.render(value).map(Value::String),
        }
    }
}

fn suggestion(template: &str) -> String {
    let path = template.trim().trim_start_matches('$').trim_start_matches('.');
    format!("$.{path}")
}

#[cfg(test)]
mod tests;
