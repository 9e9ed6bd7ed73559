//! Zeroed buffers for weights, caches and scratch, aligned for tiles and large enough pages.
use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every buffer in bytes: a cache line, and the width of the widest vector.
pub const ALIGNMENT: usize = 64;
/// Size and alignment in bytes of a huge page on x86-64.
pub const HUGE_PAGE: usize = 2 << 20;

/// Numbers that a buffer may hold: any bits are a value, and all zero bits are zero.
pub trait Number: Copy + Send + Sync + sealed::Plain + 'static {}

mod sealed {
    /// # Safety
    /// The type has no padding, no destructor and no invalid bit pattern.
    pub unsafe trait Plain {}
}

macro_rules! numbers {
    ($($t:ty),*) => {
        $(
            // SAFETY: a primitive number: no padding, no destructor, every bit pattern is valid.
            unsafe impl sealed::Plain for $t {}
            impl Number for $t {}
        )*
    };
}
numbers!(u8, u16, u32, u64, i32, f32);

/// The operating system gave no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot get {bytes} bytes of memory; use a smaller model, context or batch, or free memory")]
pub struct OutOfMemory {
    /// How much was asked for (the largest number where the size itself overflows).
    pub bytes: usize,
}

/// A fixed number of zeroed elements, aligned to [`ALIGNMENT`].
///
/// From [`HUGE_PAGE`] bytes on a buffer starts on a huge page and asks for huge pages (where the operating system has
/// them), because streaming weights through 4 KB pages costs bandwidth. Its last, unfilled huge page is left to small
/// pages, so resident memory is what is used. Pages are taken when first written.
pub struct HugeBuf<T: Number> {
    start: NonNull<T>,
    len: usize,
    origin: Origin,
    owns: PhantomData<T>,
}

/// Where the memory came from, and so how it goes back.
enum Origin {
    Nothing,
    Heap(Layout),
    #[cfg(all(target_os = "linux", not(miri)))]
    Mapping {
        _unmaps: mapping::Mapping,
    },
}

// SAFETY: the buffer owns its memory like a `Box<[T]>`, and `T: Number` is Send.
unsafe impl<T: Number> Send for HugeBuf<T> {}
// SAFETY: a shared buffer only gives out `&[T]`, and `T: Number` is Sync.
unsafe impl<T: Number> Sync for HugeBuf<T> {}

impl<T: Number> HugeBuf<T> {
    /// A buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Result<HugeBuf<T>, OutOfMemory> {
        let layout = Layout::array::<T>(len).and_then(|l| l.align_to(ALIGNMENT));
        let layout = layout.map_err(|_| OutOfMemory { bytes: usize::MAX })?;
        if layout.size() == 0 {
            // Dangling, but aligned, which is all that an empty slice needs.
            let start = NonNull::without_provenance(std::num::NonZero::new(ALIGNMENT).expect("not zero"));
            return Ok(HugeBuf { start, len: 0, origin: Origin::Nothing, owns: PhantomData });
        }
        let (start, origin) = take(layout)?;
        Ok(HugeBuf { start: start.cast(), len, origin, owns: PhantomData })
    }
}

/// Zeroed memory of a size that is not zero.
fn take(layout: Layout) -> Result<(NonNull<u8>, Origin), OutOfMemory> {
    #[cfg(all(target_os = "linux", not(miri)))]
    if layout.size() >= HUGE_PAGE {
        let mapping = mapping::Mapping::new(layout.size())?;
        return Ok((mapping.start(), Origin::Mapping { _unmaps: mapping }));
    }
    // SAFETY: the layout's size is not zero (the caller's promise).
    let start = unsafe { std::alloc::alloc_zeroed(layout) };
    let start = NonNull::new(start).ok_or(OutOfMemory { bytes: layout.size() })?;
    Ok((start, Origin::Heap(layout)))
}

impl<T: Number> Drop for HugeBuf<T> {
    fn drop(&mut self) {
        if let Origin::Heap(layout) = self.origin {
            // SAFETY: `start` came from `alloc_zeroed` with this very layout and is freed once, here.
            unsafe { std::alloc::dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Number> Deref for HugeBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned and holds `len` elements that live as long as `self`; they were zeroed, and any
        // bits are a valid `T: Number`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Number> DerefMut for HugeBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Number> std::fmt::Debug for HugeBuf<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HugeBuf<{}>({})", std::any::type_name::<T>(), self.len)
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod mapping {
    use super::{HUGE_PAGE, OutOfMemory};
    use std::ptr::NonNull;

    /// Anonymous memory of this process that starts on a huge page.
    pub(super) struct Mapping {
        base: NonNull<u8>,
        mapped: usize,
        offset: usize,
    }

    impl Mapping {
        pub(super) fn new(bytes: usize) -> Result<Mapping, OutOfMemory> {
            // A mapping starts on a small page; one huge page more leaves room to move up to a huge one. What is never
            // touched takes address space only.
            let mapped = bytes.checked_add(HUGE_PAGE).ok_or(OutOfMemory { bytes })?;
            // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    mapped,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            if base == libc::MAP_FAILED {
                return Err(OutOfMemory { bytes });
            }
            let base = NonNull::new(base.cast::<u8>()).ok_or(OutOfMemory { bytes })?;
            let offset = base.as_ptr().align_offset(HUGE_PAGE);
            let mapping = Mapping { base, mapped, offset };
            // Whole huge pages only: the rest would grow resident memory by up to 2 MB per buffer.
            let huge = bytes / HUGE_PAGE * HUGE_PAGE;
            // SAFETY: the range lies in the mapping just made (offset < HUGE_PAGE). The call is advice: it changes the
            // size of pages, never their contents; where it fails, small pages serve.
            unsafe { libc::madvise(mapping.start().as_ptr().cast(), huge, libc::MADV_HUGEPAGE) };
            Ok(mapping)
        }

        pub(super) fn start(&self) -> NonNull<u8> {
            // SAFETY: `offset` is less than HUGE_PAGE, and the mapping is longer than that.
            unsafe { self.base.add(self.offset) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: exactly the range that `mmap` returned, unmapped once; its only owner is being dropped.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
        }
    }
}

/// A mutable slice that several threads write in places that do not overlap.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]` whose parts are handed to threads, which `T: Send` allows; that the parts do not
// overlap is the obligation of `slice_mut`'s callers.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as for Send: `&Disjoint` gives out nothing but disjoint `&mut` parts.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The `len` elements from `from` on. Panics where they are not all in the slice.
    ///
    /// # Safety
    /// While the result lives, no other part given out may overlap it.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn slice_mut(&self, from: usize, len: usize) -> &mut [T] {
        assert!(from <= self.len && len <= self.len - from, "{from} + {len} of {}", self.len);
        // SAFETY: in bounds by the assert; the borrow in `'a` keeps the memory; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_writable() {
        let huge = if cfg!(miri) { 64 } else { HUGE_PAGE / 4 };
        for len in [0, 1, 63, 1000, huge - 1, huge, huge * 3 + 5] {
            let mut buffer = HugeBuf::<f32>::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().addr() % ALIGNMENT, 0);
            assert!(buffer.iter().all(|x| x.to_bits() == 0));
            if let Some(last) = buffer.last_mut() {
                *last = 1.0;
            }
            if cfg!(all(target_os = "linux", not(miri))) && len * 4 >= HUGE_PAGE {
                assert_eq!(buffer.as_ptr().addr() % HUGE_PAGE, 0);
            }
        }
    }

    #[test]
    fn absurd_sizes_are_errors() {
        assert!(HugeBuf::<u64>::zeroed(usize::MAX / 4).is_err());
        // Miri stops where memory ends.
        if !cfg!(miri) {
            assert!(HugeBuf::<u8>::zeroed(isize::MAX as usize - 4096).is_err());
        }
    }
}
