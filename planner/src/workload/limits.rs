//! How many pods stay on the current revision, may be unavailable, and may exist beyond the wanted number. Rounding is
//! always to the safe side.

use api::tkex::{UpdateStrategy, UpdateType};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::hold::Hold;

/// The limits of a rollout strategy for a number of wanted pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many pods stay on the current revision.
    pub partition: usize,
    /// How many pods may be unavailable.
    pub max_unavailable: usize,
    /// How many pods may exist beyond the wanted number.
    pub max_surge: usize,
}

impl Limits {
    /// Computes the limits. An invalid value is a hold that names its field.
    pub fn of(strategy: &UpdateStrategy, replicas: usize) -> Result<Self, Hold> {
        let partition = kept("partition", &strategy.partition, replicas)?;
        // Pods that are updated in-place have no surge pods.
        let stays = matches!(strategy.kind, UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate);
        let max_surge = resolve("maxSurge", &strategy.max_surge, replicas, Round::Up)?;
        let max_surge = if stays { 0 } else { max_surge };
        let max_unavailable = resolve("maxUnavailable", &strategy.max_unavailable, replicas, Round::Down)?;
        let floor = usize::from(max_surge == 0);
        Ok(Self { partition, max_unavailable: max_unavailable.max(floor), max_surge })
    }

    /// The same limits with a surge of at most `most` pods. Without a surge, one pod may be unavailable.
    #[must_use]
    pub fn with_surge_of(self, most: usize) -> Self {
        let max_surge = self.max_surge.min(most);
        Self { max_unavailable: self.max_unavailable.max(usize::from(max_surge == 0)), max_surge, ..self }
    }
}

/// How many pods a partition keeps on the current revision. An invalid value is a hold that names its field.
pub fn kept(field: &str, partition: &IntOrString, replicas: usize) -> Result<usize, Hold> {
    Ok(resolve(field, partition, replicas, Round::Up)?.min(replicas))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Up,
    Down,
}

fn resolve(field: &str, value: &IntOrString, of: usize, round: Round) -> Result<usize, Hold> {
    let invalid = |problem: String| Hold::Invalid { field: format!("spec.updateStrategy.{field}"), problem };
    match value {
        IntOrString::Int(number) => {
            usize::try_from(*number).map_err(|_| invalid(format!("{number} is negative; give a number of pods or a percentage")))
        }
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<u32>().ok());
            let percent = percent.ok_or_else(|| invalid(format!("{text:?} is neither a number of pods nor a percentage such as 25%")))?;
            let hundredfold = of.saturating_mul(percent as usize);
            Ok(if round == Round::Up { hundredfold.div_ceil(100) } else { hundredfold / 100 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(partition: &str, max_unavailable: &str, max_surge: &str, replicas: usize) -> Result<Limits, Hold> {
        let read = |text: &str| text.parse().map_or_else(|_| IntOrString::String(text.to_owned()), IntOrString::Int);
        let strategy = UpdateStrategy {
            partition: read(partition),
            max_unavailable: read(max_unavailable),
            max_surge: read(max_surge),
            ..UpdateStrategy::default()
        };
        Limits::of(&strategy, replicas)
    }

    fn seen(partition: usize, max_unavailable: usize, max_surge: usize) -> Result<Limits, Hold> {
        Ok(Limits { partition, max_unavailable, max_surge })
    }

    #[test]
    fn percentages_round_to_the_safe_side() {
        assert_eq!(limits("25%", "25%", "25%", 10), seen(3, 2, 3));
        assert_eq!(limits("1%", "99%", "1%", 3), seen(1, 2, 1));
    }

    #[test]
    fn one_pod_may_always_be_unavailable_unless_surge_makes_room() {
        assert_eq!(limits("0", "25%", "0", 3), seen(0, 1, 0));
        assert_eq!(limits("0", "25%", "1", 3), seen(0, 0, 1));
        assert_eq!(limits("0", "0", "0", 8), seen(0, 1, 0));
    }

    #[test]
    fn a_partition_beyond_the_replicas_keeps_them_all() {
        assert_eq!(limits("12", "2", "0", 8), seen(8, 2, 0));
    }

    #[test]
    fn a_value_that_cannot_be_read_names_its_field() {
        for (text, field) in [("-1", "spec.updateStrategy.maxUnavailable"), ("a few", "spec.updateStrategy.maxUnavailable")] {
            let Err(Hold::Invalid { field: named, .. }) = limits("0", text, "0", 8) else { panic!("accepted {text}") };
            assert_eq!(named, field);
        }
    }
}
