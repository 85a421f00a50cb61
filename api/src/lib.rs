//! The API of Gameplane: kinds, defaults and validation. No I/O, no client.

#![expect(unreachable_pub, reason = "the schema derive writes a private copy of each public type")]

pub mod names;
pub mod schema;
pub mod selector;
pub mod template;
pub mod tkex;
