//! A list of scheduling policies: `fifo:50,other:-5`.

use std::str::FromStr;

use crate::sys::Policy;

/// Policies in the order given, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyList(Vec<Policy>);

impl PolicyList {
    /// The policy of data thread `index`; threads beyond the end start again at the first.
    #[must_use]
    pub fn for_thread(&self, index: usize) -> Option<Policy> {
        self.0.get(index % self.0.len().max(1)).copied()
    }
}

/// A list that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected fifo:PRIORITY or rr:PRIORITY with 1 to 99, other:NICE or batch:NICE with -20 to 19, \
     or several of them, such as fifo:50,other:0"
)]
pub struct PolicyListError;

impl FromStr for PolicyList {
    type Err = PolicyListError;

    fn from_str(text: &str) -> Result<Self, PolicyListError> {
        let policies = text.split(',').map(|part| policy(part.trim()));
        let policies: Option<_> = policies.collect();
        policies.map(Self).ok_or(PolicyListError)
    }
}

fn policy(text: &str) -> Option<Policy> {
    let (name, number) = text.split_once(':').unwrap_or((text, "0"));
    let nice = number.parse().ok().filter(|nice| (-20..=19).contains(nice));
    let priority = number.parse().ok().filter(|nice| (1..=99).contains(nice));
    match name {
        "other" => nice.map(Policy::Other),
        "batch" => nice.map(Policy::Batch),
        "fifo" => priority.map(Policy::Fifo),
        "rr" => priority.map(Policy::RoundRobin),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_the_policies_in_turn() {
        let policies: PolicyList = "fifo:50, other:-5,batch".parse().unwrap();
        let taken: Vec<_> = (0..4).filter_map(|nth| policies.for_thread(nth)).collect();
        let [fifo, other, batch] = [Policy::Fifo(50), Policy::Other(-5), Policy::Batch(0)];
        assert_eq!(taken, [fifo, other, batch, fifo]);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "fifo",
            "fifo:0",
            "fifo:100",
            "rr:-1",
            "other:20",
            "batch:-21",
            "idle",
            "fifo:1,",
            "other:",
            "fifo:1:2",
        ] {
            assert_eq!(text.parse::<PolicyList>(), Err(PolicyListError), "{text:?}");
        }
    }

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        for text in ["fifo:50", "rr:1", "other:-20", "batch:19"] {
            assert_eq!(policy(text).unwrap().to_string(), text);
        }
    }
}
