//! Which processor a thread of a team runs on.

/// Binds the calling thread to the processor of thread number `thread` in a team of `threads`, if this process may run
/// on that many; else lets it run wherever the process may. Failure is not an error: the thread runs where it can.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn bind(thread: usize, threads: usize) {
    let allowed = allowed();
    match allowed.get(thread) {
        Some(&cpu) if threads <= allowed.len() => set(&[cpu]),
        // A thread inherits the binding of the one that started it, which may be bound to one processor.
        _ => set(allowed),
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
pub(super) fn bind(_thread: usize, _threads: usize) {}

/// The processors that this process might use when it was first asked: before any thread was bound.
#[cfg(all(target_os = "linux", not(miri)))]
fn allowed() -> &'static [usize] {
    use std::sync::OnceLock;
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
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
    })
}

#[cfg(all(target_os = "linux", not(miri)))]
fn set(cpus: &[usize]) {
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
