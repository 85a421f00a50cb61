//! The laws on random worlds: what happens there ([`events`]), what is checked ([`checks`]), the laws of every kind ([`shared`]), and a file for each kind.

mod checks;
pub(crate) mod events;
mod gamedeployment;
pub(crate) mod shared;

pub(crate) use self::shared::laws;
