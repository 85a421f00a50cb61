//! Validation of names that become part of a request path or of a user name.

use super::http::NoAnswer;

/// Whether a text has the form of a label, of any length.
fn is_like_label(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().next_back()];
    ends.iter().all(|end| end.is_some_and(is_lower)) && text.bytes().all(|byte| is_lower(byte) || byte == b'-')
}

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether a text can be the name of a container or of an API version: an RFC 1123 label.
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_like_label(text)
}

/// Whether a text can be the name of a pod, a Secret or a ServiceAccount, or an API group: an RFC 1123 subdomain.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_like_label)
}

/// Whether a text can be the name of an object of most kinds. It stays one segment of a path.
pub(crate) fn is_object(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(is_plain) && !text.starts_with('.')
}

/// Whether a text can be a kind.
pub(crate) fn is_kind(text: &str) -> bool {
    !text.is_empty() && text.len() <= 63 && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether a text can be a key of a Secret.
pub(crate) fn is_key(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(is_plain)
}

/// The text, if it is valid. `field` is where it comes from, `what` is what it should name.
pub(crate) fn checked<'t>(field: &str, text: &'t str, what: &str, fits: impl Fn(&str) -> bool) -> Result<&'t str, NoAnswer> {
    if fits(text) { Ok(text) } else { Err(NoAnswer::because(format!("{field} is {text:?}, which cannot be the name of {what}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_its_place_in_a_path() {
        let long = "a".repeat(254);
        let evil = ["", ".", "..", "a/b", "../secrets/x", "a/../b", "a?b", "a#b", "a%2fb", "a b", "a\nb", "ä", ".a", &long];
        for text in evil {
            assert!(!is_label(text) && !is_subdomain(text) && !is_object(text) && !is_kind(text), "{text:?}");
            assert!(!is_key(text) || !text.contains(['/', '?', '#', '%', ' ', '\n']), "{text:?}");
        }
        assert!(is_label("game") && is_label("v1alpha1") && !is_label("Game") && !is_label("a.b") && !is_label("-a") && !is_label("a-"));
        assert!(is_subdomain("door-x7k2p") && is_subdomain("apps.example.com") && !is_subdomain("a..b") && !is_subdomain("Door"));
        assert!(is_subdomain(&"a".repeat(200)) && !is_label(&"a".repeat(64)) && is_object("system:node_1"));
        assert!(is_object("Role-1") && is_kind("ConfigMap") && is_key("token_1.txt"));
        let said = checked("args.PodName", "../x", "a pod", is_subdomain).unwrap_err().message;
        assert_eq!(said, "args.PodName is \"../x\", which cannot be the name of a pod");
    }
}
