//! CPU time and memory of a process.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use localkube::{Cluster, OperatorOptions, Operators};

/// USER_HZ is 100 on every supported architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// How long the control plane uses less than a quarter of a core before something is measured.
const IDLE_FOR: Duration = Duration::from_secs(1);

/// CPU time of a process and its threads so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuTime(f64);

impl CpuTime {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
        Self::parse(&stat).with_context(|| format!("cannot read the times of process {pid}"))
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may contain spaces and parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
        Some(Self((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND))
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_secs_f64((self.0 - earlier.0).max(0.0))
    }
}

/// Starts the operator and returns when it serves. The lease of the one before it may have to expire first.
pub(crate) async fn serving(cluster: &Cluster, options: &OperatorOptions) -> Result<Operators> {
    let operators = cluster.start_operators(options).await?;
    let (log, end) = (cluster.folder().join("logs/operator-1.log"), Instant::now() + Duration::from_secs(60));
    while !std::fs::read_to_string(&log)?.lines().any(|line| line.contains("serving") && line.contains("kind=\"GameDeployment\"")) {
        ensure!(Instant::now() < end, "the operator does not serve within 60 s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(operators)
}

/// Waits until the control plane and the operator have nothing more to do: what one contender leaves behind would otherwise cost the
/// next one time.
pub(crate) async fn idle(cluster: &Cluster) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    let pids = || -> Result<Vec<u32>> {
        let files = std::fs::read_dir(cluster.folder())?.filter_map(|entry| Some(entry.ok()?.path()));
        let pids = files.filter(|path| path.extension().is_some_and(|ending| ending == "pid"));
        Ok(pids.filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok()).collect())
    };
    let used = || -> Result<f64> { Ok(pids()?.into_iter().filter_map(|pid| Some(CpuTime::of(pid).ok()?.0)).sum()) };
    loop {
        let before = used()?;
        tokio::time::sleep(IDLE_FOR).await;
        if used()? - before < IDLE_FOR.as_secs_f64() / 4.0 {
            return Ok(());
        }
        ensure!(Instant::now() < end, "the control plane does not come to rest within 60 s");
    }
}

/// The peak resident memory of a process so far, in bytes.
pub(crate) fn peak_memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added_whatever_the_process_is_called() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 1";
        assert!((CpuTime::parse(stat).unwrap().0 - 2.0).abs() < f64::EPSILON);
        assert!(CpuTime::parse("nonsense").is_none());
    }
}
