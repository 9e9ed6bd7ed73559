//! Which processor a thread of a team runs on.

/// Binds the calling thread to the processor of thread number `thread` in a team of `threads`, if this process may run
/// on that many; else lets it run wherever the process may. Failure is not an error: the thread runs where it can.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn bind(thread: usize, threads: usize) {
    let processors = linux::processors();
    match processors.get(thread) {
        Some(processor) if threads <= processors.len() => linux::set(&[processor.number]),
        // A thread inherits the binding of the one that started it, which may be bound to one processor.
        _ => linux::set(&processors.iter().map(|processor| processor.number).collect::<Vec<_>>()),
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn bind(_thread: usize, _threads: usize) {}

/// Number of cores that this process may run on, where that is known.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn cores() -> Option<usize> {
    let cores = linux::processors().iter().filter(|processor| processor.sibling == 0).count();
    (cores > 0).then_some(cores)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn cores() -> Option<usize> {
    None
}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use std::sync::OnceLock;

    /// A processor that this process may run on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Processor {
        pub(super) number: usize,
        /// How many processors of the same core come before it.
        pub(super) sibling: usize,
    }

    /// The processors that this process might use when it was first asked (before any thread was bound), one of each core
    /// first: two threads on one core share its multipliers and its caches.
    pub(super) fn processors() -> &'static [Processor] {
        static PROCESSORS: OnceLock<Vec<Processor>> = OnceLock::new();
        PROCESSORS.get_or_init(|| {
            order(&allowed(), |processor| {
                let file = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
                std::fs::read_to_string(file).map_or_else(|_| vec![processor], |list| parse_list(&list))
            })
        })
    }

    pub(super) fn order(allowed: &[usize], siblings: impl Fn(usize) -> Vec<usize>) -> Vec<Processor> {
        let processor = |&number: &usize| {
            let before = |other: &usize| *other < number && allowed.contains(other);
            Processor { number, sibling: siblings(number).iter().filter(|other| before(other)).count() }
        };
        let mut processors: Vec<Processor> = allowed.iter().map(processor).collect();
        processors.sort_by_key(|processor| processor.sibling);
        processors
    }

    /// Numbers in the kernel's notation, as `0,4-6`. What is not in it is left out.
    pub(super) fn parse_list(list: &str) -> Vec<usize> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        list.trim().split(',').filter_map(range).flatten().collect()
    }

    fn allowed() -> Vec<usize> {
        // SAFETY: a `cpu_set_t` is an array of integers, for which zero is a value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes at most the given size into our own set; 0 is the calling thread.
        let answer = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        if answer != 0 {
            return Vec::new(); // More processors than the set can name: leave them unbound.
        }
        let count = usize::try_from(libc::CPU_SETSIZE).expect("a small number");
        // SAFETY: `CPU_ISSET` reads bit `cpu` of the set, and `cpu` is below the number of its bits.
        (0..count).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
    }

    pub(super) fn set(cpus: &[usize]) {
        if cpus.is_empty() {
            return;
        }
        // SAFETY: a `cpu_set_t` is an array of integers, for which zero is a value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &cpu in cpus {
            // SAFETY: `cpu` came from such a set, so it is below the number of its bits.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        // SAFETY: the kernel reads the given size from our own set; 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::linux::{order, parse_list};

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list("0\n"), [0]);
        assert_eq!(parse_list("0,4-6,9\n"), [0, 4, 5, 6, 9]);
        assert_eq!(parse_list("x,3,5-,-"), [3]);
        assert_eq!(parse_list(""), [0; 0]);
    }

    #[test]
    fn one_processor_of_each_core_comes_first() {
        let neighbours = |processor: usize| vec![processor / 2 * 2, processor / 2 * 2 + 1];
        let numbers = |allowed: &[usize]| -> Vec<(usize, usize)> {
            order(allowed, neighbours).iter().map(|processor| (processor.number, processor.sibling)).collect()
        };
        assert_eq!(numbers(&[0, 1, 2, 3]), [(0, 0), (2, 0), (1, 1), (3, 1)]);
        // A sibling that is not allowed does not count.
        assert_eq!(numbers(&[1, 2, 3, 5]), [(1, 0), (2, 0), (5, 0), (3, 1)]);
        assert_eq!(numbers(&[]), []);
    }
}
