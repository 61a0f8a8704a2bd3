//! A list of CPUs in the notation of taskset(1) and the kernel: `2,4-7`.

use std::str::FromStr;

/// Most CPUs that a list may name. Source: `CPU_SETSIZE`, sched.h.
const CPU_MAX: usize = 1024;

/// CPUs in the order given, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// The CPU of data thread `index`; threads beyond the end start again at the first.
    #[must_use]
    pub fn for_thread(&self, index: usize) -> Option<usize> {
        self.0.get(index % self.0.len().max(1)).copied()
    }
}

/// A list that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected CPU numbers and ranges from 0 to 1023, such as 2,4-7")]
pub struct CpuListError;

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let cpu = |text: &str| {
            let cpu = text.trim().parse::<usize>().ok();
            cpu.filter(|&cpu| cpu < CPU_MAX).ok_or(CpuListError)
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            match part.split_once('-') {
                None => cpus.push(cpu(part)?),
                Some((first, last)) => {
                    let range = cpu(first)?..=cpu(last)?;
                    if range.is_empty() {
                        return Err(CpuListError);
                    }
                    cpus.extend(range);
                }
            }
        }
        Ok(Self(cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_the_cpus_in_turn() {
        let cpus: CpuList = "2,4-5".parse().unwrap();
        let taken: Vec<_> = (0..4)
            .filter_map(|thread| cpus.for_thread(thread))
            .collect();
        assert_eq!(taken, [2, 4, 5, 2]);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "a", "3-1", "1,,2", "-1", "1024", "0-99999999999"] {
            assert_eq!(text.parse::<CpuList>(), Err(CpuListError), "{text:?}");
        }
    }
}
