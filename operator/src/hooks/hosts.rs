//! Limits the measurements in flight to one address and port.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

use super::locked;
use crate::fair::Places;

/// When this many addresses are known, unused ones are removed.
const REMEMBERED: usize = 1024;

/// The slots of each address, as long as a measurement holds or waits for one.
#[derive(Debug)]
pub(crate) struct Hosts {
    per_host: usize,
    known: Mutex<HashMap<SocketAddr, Weak<Places>>>,
}

impl Hosts {
    /// Allows this many measurements in flight to each address.
    pub(crate) fn new(per_host: usize) -> Self {
        Self { per_host, known: Mutex::default() }
    }

    /// The slots of one address.
    pub(crate) fn of(&self, host: SocketAddr) -> Arc<Places> {
        let mut known = locked(&self.known);
        if let Some(places) = known.get(&host).and_then(Weak::upgrade) {
            return places;
        }
        if known.len() >= REMEMBERED {
            known.retain(|_, places| places.strong_count() > 0);
        }
        let new = Places::new(self.per_host);
        known.insert(host, Arc::downgrade(&new));
        new
    }
}
