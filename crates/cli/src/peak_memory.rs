//! The most memory that this process had at one time.

/// Bytes resident at most; `None` where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Other systems have no file that says it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    None
}

#[cfg(any(target_os = "linux", test))]
fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_peak_is_found() {
        assert_eq!(parse("Name:\tx\nVmHWM:\t   12 kB\nVmRSS:\t 1 kB\n"), Some(12 * 1024));
        assert_eq!(parse("Name:\tx\n"), None);
    }
}
