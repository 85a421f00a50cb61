//! The laws on random worlds: what happens there ([`events`]), what is checked ([`checks`]), the laws of every kind ([`shared`]), and a file for each kind.

mod checks;
mod events;
mod gamedeployment;
mod shared;
