//! `{{ args.name }}` in urls, headers, bodies, queries and commands.
//!
//! Values are encoded for where they are inserted: percent-encoded in urls, escaped in PromQL strings, unchanged
//! elsewhere. `{{ args.name | raw }}` leaves them unchanged everywhere. A value is never searched for further
//! arguments.

use std::collections::BTreeMap;

use super::Problem;

/// Where a text is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A url: everything but letters, digits and `-._~` is percent-encoded.
    Url,
    /// A PromQL query: quotes, backslashes and line ends are escaped.
    Query,
    /// Anywhere else.
    Plain,
}

/// The longest text after its arguments are filled in.
const MAX_FILLED_BYTES: usize = 64 * 1024;

/// Fills in the arguments of a text. The error names what is missing.
pub fn fill(text: &str, arguments: &BTreeMap<String, String>, place: Place) -> Result<String, Problem> {
    let mut filled = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece? {
            Piece::Text(text) => filled.push_str(text),
            Piece::Argument { name, raw } => {
                let value = arguments.get(name).ok_or_else(|| Problem(format!("args.{name} has no value")))?;
                match if raw { Place::Plain } else { place } {
                    // The author of the url writes the brackets around an IPv6 address.
                    Place::Url if value.parse::<std::net::Ipv6Addr>().is_ok() => filled.push_str(value),
                    Place::Url => percent_encode(value, &mut filled),
                    Place::Query => escape(value, &mut filled),
                    Place::Plain => filled.push_str(value),
                }
                if filled.len() > MAX_FILLED_BYTES {
                    return Err(Problem(format!("with its arguments it is longer than {MAX_FILLED_BYTES} bytes")));
                }
            }
        }
    }
    Ok(filled)
}

/// The arguments that a text needs.
pub fn needed(text: &str) -> Result<Vec<&str>, Problem> {
    let mut names = Vec::new();
    for piece in pieces(text) {
        if let Piece::Argument { name, .. } = piece? {
            names.push(name);
        }
    }
    Ok(names)
}

enum Piece<'a> {
    Text(&'a str),
    Argument { name: &'a str, raw: bool },
}

fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, Problem>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(start) = rest.find("{{") else { return Some(Ok(Piece::Text(std::mem::take(&mut rest)))) };
        if start > 0 {
            let (before, after) = rest.split_at(start);
            rest = after;
            return Some(Ok(Piece::Text(before)));
        }
        let inside = rest.get(2..).unwrap_or_default();
        let Some((tag, after)) = inside.split_once("}}") else {
            rest = "";
            return Some(Err(Problem("a {{ is not closed".to_owned())));
        };
        rest = after;
        Some(argument(tag))
    })
}

fn argument(tag: &str) -> Result<Piece<'_>, Problem> {
    let (path, mark) = tag.split_once('|').map_or((tag, None), |(path, mark)| (path, Some(mark.trim())));
    let name = path.trim().strip_prefix("args.").filter(|name| !name.is_empty());
    match (name, mark) {
        (Some(name), None) => Ok(Piece::Argument { name, raw: false }),
        (Some(name), Some("raw")) => Ok(Piece::Argument { name, raw: true }),
        _ => Err(Problem(format!("{{{{{tag}}}}} is not understood: write {{{{ args.NAME }}}} or {{{{ args.NAME | raw }}}}"))),
    }
}

fn percent_encode(value: &str, out: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

fn escape(value: &str, out: &mut String) {
    for letter in value.chars() {
        match letter {
            '"' | '\'' | '`' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> BTreeMap<String, String> {
        [("ip", "10.0.0.7"), ("text", "a b/../c?d=1&{{ args.ip }}"), ("label", "x\"} or up{job=\"y"), ("PodContainer[0]", "game")]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn values_are_made_fit_for_their_place() {
        let fill = |text: &str, place| fill(text, &arguments(), place).map_err(|problem| problem.0);
        assert_eq!(fill("http://{{ args.ip }}:80/{{args.PodContainer[0]}}", Place::Url).unwrap(), "http://10.0.0.7:80/game");
        assert_eq!(fill("http://h/{{args.text}}", Place::Url).unwrap(), "http://h/a%20b%2F..%2Fc%3Fd%3D1%26%7B%7B%20args.ip%20%7D%7D");
        assert_eq!(
            fill("{{args.text | raw}}", Place::Url).unwrap(),
            "a b/../c?d=1&{{ args.ip }}",
            "arguments in a value are not filled in"
        );
        assert_eq!(fill("up{l=\"{{args.label}}\"}", Place::Query).unwrap(), "up{l=\"x\\\"} or up{job=\\\"y\"}");
        assert_eq!(fill("{ \"a\": { } }", Place::Plain).unwrap(), "{ \"a\": { } }");
    }

    #[test]
    fn what_is_missing_is_named() {
        let fill = |text: &str| fill(text, &arguments(), Place::Plain).unwrap_err().0;
        assert_eq!(fill("{{ args.port }}"), "args.port has no value");
        assert_eq!(fill("{{ args.ip"), "a {{ is not closed");
        assert!(fill("{{ env.HOME }}").contains("is not understood"));
        assert!(fill("{{ args.ip | upper }}").contains("is not understood"));
        assert_eq!(needed("{{args.a}} {{ args.b | raw }}").unwrap(), ["a", "b"]);
    }
}
