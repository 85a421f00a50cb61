//! Names of new pods. They follow from the owner, the revision and a number, so that the same decision made twice
//! creates the same pod, and the API server refuses the second request.

use std::collections::BTreeSet;

use crate::hash::fnv_1a_64;

const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const LENGTH: usize = 5;

/// Names for pods of one owner and revision, without end, each with the five characters at its end. None is in `taken`,
/// and none is repeated.
pub fn names<'a>(
    owner: &'a str,
    owner_uid: &'a str,
    revision: &'a str,
    taken: &'a mut BTreeSet<String>,
) -> impl Iterator<Item = (String, String)> + 'a {
    (0_u64..).filter_map(move |number| {
        let id = id(owner_uid, revision, number);
        let name = format!("{owner}-{id}");
        taken.insert(name.clone()).then_some((name, id))
    })
}

fn id(owner_uid: &str, revision: &str, number: u64) -> String {
    let bytes = owner_uid.bytes().chain([0]).chain(revision.bytes()).chain([0]).chain(number.to_le_bytes());
    let mut rest = mix(fnv_1a_64(bytes));
    let base = ALPHABET.len() as u64;
    let mut text = String::with_capacity(LENGTH);
    for _ in 0..LENGTH {
        let digit = usize::try_from(rest % base).unwrap_or_default();
        rest /= base;
        text.extend(ALPHABET.get(digit).map(|byte| char::from(*byte)));
    }
    text
}

/// FNV gives similar hashes to consecutive numbers; this spreads them.
fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_question_gets_the_same_names() {
        let names = |uid| names("game", uid, "game-1", &mut BTreeSet::new()).take(100).collect::<Vec<_>>();
        assert_eq!(names("uid-1"), names("uid-1"));
        assert_ne!(names("uid-1"), names("uid-2"));
    }

    #[test]
    fn taken_names_are_left_out_and_none_comes_twice() {
        let mut taken = BTreeSet::new();
        let first: Vec<_> = names("game", "uid", "game-1", &mut taken).take(10_000).collect();
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), first.len());
        let second: Vec<_> = names("game", "uid", "game-1", &mut taken).take(10).collect();
        assert!(second.iter().all(|one| !first.contains(one)), "a name was given twice");
    }

    #[test]
    fn names_look_like_those_of_the_walk_through() {
        let (name, id) = names("game", "uid", "game-1", &mut BTreeSet::new()).next().unwrap_or_default();
        assert_eq!(name, format!("game-{id}"));
        assert_eq!(id.len(), 5);
        assert!(id.bytes().all(|byte| ALPHABET.contains(&byte)), "{id}");
    }
}
