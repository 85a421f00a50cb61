//! Exponential backoff with jitter.

use std::time::Duration;

use rand::RngExt;

/// The shortest and the longest wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl Backoff {
    /// The delay after a failure that follows `failures` consecutive ones.
    pub(crate) fn after(self, failures: u32) -> Duration {
        let wait = self.least.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(self.most);
        wait.mul_f64(rand::rng().random_range(0.8..1.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_about_twice_the_one_before_up_to_the_longest() {
        let backoff = Backoff { least: Duration::from_millis(100), most: Duration::from_secs(2) };
        for (failures, wait) in [(0, 100), (1, 200), (4, 1600), (5, 2000), (64, 2000)] {
            let (wait, found) = (Duration::from_millis(wait), backoff.after(failures));
            assert!(found >= wait.mul_f64(0.79) && found <= wait.mul_f64(1.21), "{failures}: {found:?}");
        }
    }
}
