//! What a model needs, and what the machine has: said before anything is loaded.

use paceline::{Activation, DraftOptions, MemoryNeeded, ModelFolder, Sizes};

use crate::failure::Failure;
use crate::numbers::bytes;

/// Refuses a model that needs more memory than there is, with those that draft for it.
pub(crate) fn check(
    folder: &ModelFolder,
    draft: Option<&DraftOptions<'_>>,
    sizes: Sizes,
    activation: Activation,
) -> Result<(), Failure> {
    let needed = MemoryNeeded::of(folder, draft, sizes, activation)?;
    match available() {
        Some(available) if needed.total() > available => {
            Err(Failure::failed(refusal(folder, needed, available, sizes.context)))
        }
        _ => Ok(()),
    }
}

fn refusal(folder: &ModelFolder, needed: MemoryNeeded, available: u64, context: usize) -> String {
    format!(
        "{}: needs at least {} of memory ({}), and {} are available; take a smaller model or context, or free memory",
        folder.origin().display(),
        bytes(needed.total()),
        parts(needed, &format!(" at {context} tokens")),
        bytes(available)
    )
}

/// What the memory is for; `at` says what the K/V is for.
pub(crate) fn parts(needed: MemoryNeeded, at: &str) -> String {
    let buffers = match needed.drafter_buffers {
        0 => String::new(),
        drafter => format!(", {} of drafters' buffers", bytes(drafter)),
    };
    format!("{} of weights, {} of K/V{at}{buffers}", bytes(needed.weights), bytes(needed.kv))
}

/// Bytes that this process may still get; `None` where the system does not say.
#[cfg(target_os = "linux")]
fn available() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = machine_available(&read("/proc/meminfo")?)?;
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    Some(group_available(&groups, read).map_or(machine, |group| group.min(machine)))
}

/// Other systems have no file that says it.
#[cfg(not(target_os = "linux"))]
fn available() -> Option<u64> {
    None
}

/// What the machine can give, swap included.
#[cfg(any(target_os = "linux", test))]
fn machine_available(meminfo: &str) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((kibibytes("MemAvailable")? + kibibytes("SwapFree").unwrap_or(0)) * 1024)
}

/// What the control groups of this process leave it: the least over all of them. Both versions exist, and a group
/// may be mounted at its own path or, in a container, at the root.
#[cfg(any(target_os = "linux", test))]
fn group_available(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let number = |path: String| read(&path)?.trim().parse::<u64>().ok();
    // Files in the page cache count as used, but give way.
    let cached = |path: String, name: &str| {
        let stat = read(&path)?;
        stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let mut least = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, limit, usage, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
            "memory" => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file ",
            ),
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            let at = |file: &str| format!("{root}{path}/{file}");
            if let (Some(limit), Some(usage)) = (number(at(limit)), number(at(usage))) {
                let used = usage.saturating_sub(cached(at("memory.stat"), file).unwrap_or(0));
                let left = limit.saturating_sub(used);
                least = Some(least.map_or(left, |least: u64| least.min(left)));
            }
            let Some(parent) = path.rfind('/') else { break };
            path = &path[..parent];
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Drafters;

    #[test]
    fn the_machine_says_what_it_has() {
        let meminfo = "MemTotal:       100 kB\nMemAvailable:    60 kB\nSwapFree:        5 kB\n";
        assert_eq!(machine_available(meminfo), Some(65 * 1024));
        assert_eq!(machine_available("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn the_tightest_group_counts() {
        let files = |files: &'static [(&'static str, &'static str)]| {
            move |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        };
        let second = files(&[
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "70\n"),
            ("/sys/fs/cgroup/a/memory.max", "100\n"),
            ("/sys/fs/cgroup/a/memory.current", "70\n"),
            ("/sys/fs/cgroup/a/memory.stat", "active_file 3\ninactive_file 20\n"),
        ]);
        assert_eq!(group_available("0::/a/b\n", second), Some(50));
        let first = files(&[
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1100\n"),
        ]);
        assert_eq!(group_available("9:cpu:/x\n4:memory:/docker/123\n0::/\n", first), Some(0));
        assert_eq!(group_available("nonsense\n", |_| None), None);
    }

    #[test]
    fn a_refusal_has_the_figures() {
        let shape = |name: &str| crate::made_up::open_shape(name).unwrap();
        let (folder, sizes) = (shape("gemma4-31b"), Sizes::single(4096));
        let text = |drafter: Option<&str>| {
            let drafters = drafter.map(|name| Drafters::of_folder(shape(name)));
            let draft = drafters.as_ref().and_then(Drafters::options);
            let needed = MemoryNeeded::of(&folder, draft.as_ref(), sizes, Activation::Bf16).unwrap();
            refusal(&folder, needed, 8_000_000_000, sizes.context)
        };
        for (drafter, figures) in [
            (None, "63.04 GB of memory (61.39 GB of weights, 1.65 GB of K/V at 4096 tokens)"),
            (
                Some("gemma4-31b-assistant"),
                "63.98 GB of memory (62.33 GB of weights, 1.65 GB of K/V at 4096 tokens, 1.31 MB of drafters' buffers)",
            ),
            (
                Some("gemma4-31b-dflash"),
                "66.42 GB of memory (64.58 GB of weights, 1.71 GB of K/V at 4096 tokens, 132.48 MB of drafters' buffers)",
            ),
            (Some("gemma4-e2b"), "67.64 GB of memory (65.95 GB of weights, 1.68 GB of K/V at 4096 tokens)"),
        ] {
            let start = format!("gemma4-31b: needs at least {figures}, and 8.00 GB are available");
            assert!(text(drafter).starts_with(&start), "{}", text(drafter));
        }
    }
}
