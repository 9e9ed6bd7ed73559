//! CPU levels, found at run time, and the proofs that a level may be used.
//!
//! [`Isa`] is a level that this processor and operating system were seen to support; nothing else makes one, so
//! a safe kernel that takes an `Isa` may call the functions of that level. All levels give the same bits: the
//! level is a matter of speed, and of testing.
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// Name of the environment variable that forces a level.
pub const ISA_VARIABLE: &str = "PACELINE_ISA";

/// A set of instructions that kernels are written for, in ascending order of speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust, on any processor.
    Scalar,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
    /// AVX-512's dot products of pairs of bf16, beside everything of [`Level::Avx512`].
    Avx512Bf16,
    /// AMX tiles with bf16, beside everything of [`Level::Avx512`].
    Amx,
}

impl Level {
    /// Every level, slowest first.
    pub const ALL: [Level; 5] = [Level::Scalar, Level::Avx2, Level::Avx512, Level::Avx512Bf16, Level::Amx];

    /// The word for this level in `PACELINE_ISA` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Avx512Bf16 => "avx512bf16",
            Level::Amx => "amx",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Level {
    type Err = IsaError;

    fn from_str(word: &str) -> Result<Level, IsaError> {
        let found = Level::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(word));
        found.ok_or_else(|| IsaError::UnknownLevel { word: word.to_owned() })
    }
}

/// Why a level cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IsaError {
    /// The word names no level.
    #[error("`{word}` is not a CPU level; use one of scalar, avx2, avx512, avx512bf16, amx")]
    UnknownLevel {
        /// What was given.
        word: String,
    },
    /// This machine lacks the level.
    #[error("CPU level `{level}` cannot be used on this machine: {reason}; the best level here is `{best}`")]
    Unavailable {
        /// The level asked for.
        level: Level,
        /// What is missing.
        reason: Missing,
        /// The highest level that would work.
        best: Level,
    },
}

/// What stands in the way of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// The processor (or the virtual machine) does not report the instructions.
    Instructions,
    /// The processor has AMX, the operating system does not let this process use it; the value is its error number.
    Permission(i32),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Instructions => f.write_str("the processor does not report its instructions"),
            Missing::Permission(code) => {
                let error = std::io::Error::from_raw_os_error(*code);
                write!(f, "the operating system refuses the use of AMX tiles ({error})")
            }
        }
    }
}

/// Something about the choice of level that its user should be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IsaNote {
    /// The processor has AMX, but the operating system refuses it.
    AmxRefused {
        /// Why.
        reason: Missing,
        /// The level taken instead.
        chosen: Level,
    },
}

impl fmt::Display for IsaNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IsaNote::AmxRefused { reason, chosen } = self;
        write!(f, "this processor has AMX, but {reason}; using `{chosen}`")
    }
}

/// A level that may be used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

/// Proof that this processor has AVX2 and FMA. Only an [`Isa`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Proof that this processor has AVX-512 F, BW, VL and DQ. Only an [`Isa`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

/// Proof that this processor has [`Avx512`] and bf16 dot products that add in the order of the contract. Only an [`Isa`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(());

impl Avx512Bf16 {
    /// The level has all of AVX-512.
    #[inline]
    pub fn avx512(self) -> Avx512 {
        Avx512(())
    }
}

/// Proof that this process may use AMX tiles with bf16. Only an [`Isa`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

impl Amx {
    /// The level of AMX has all of AVX-512.
    #[inline]
    pub fn avx512(self) -> Avx512 {
        Avx512(())
    }
}

impl Isa {
    /// The given level, if this machine has it. The first question about AMX asks the operating system to allow
    /// its use in this process.
    pub fn new(level: Level) -> Result<Isa, IsaError> {
        Cpu::this().level(level)
    }

    /// The highest level of this machine, and a note where that is not what its processor could do.
    pub fn best() -> (Isa, Option<IsaNote>) {
        Cpu::this().best()
    }

    /// The level that the environment variable `PACELINE_ISA` names; unset or empty means [`Isa::best`].
    pub fn from_env() -> Result<(Isa, Option<IsaNote>), IsaError> {
        let word = std::env::var_os(ISA_VARIABLE).unwrap_or_default();
        if word.is_empty() {
            return Ok(Isa::best());
        }
        let level: Level = word.to_string_lossy().parse()?;
        Ok((Isa::new(level)?, None))
    }

    /// Which level this is.
    pub fn level(self) -> Level {
        self.0
    }

    /// Proof of AVX2 and FMA, at that level and above.
    #[inline]
    pub fn avx2(self) -> Option<Avx2> {
        (self.0 >= Level::Avx2).then_some(Avx2(()))
    }

    /// Proof of AVX-512, at that level and above.
    #[inline]
    pub fn avx512(self) -> Option<Avx512> {
        (self.0 >= Level::Avx512).then_some(Avx512(()))
    }

    /// Proof of dot products of bf16, at that level. (AMX does all that they would.)
    #[inline]
    pub fn avx512_bf16(self) -> Option<Avx512Bf16> {
        (self.0 == Level::Avx512Bf16).then_some(Avx512Bf16(()))
    }

    /// Proof of AMX, at that level.
    #[inline]
    pub fn amx(self) -> Option<Amx> {
        (self.0 >= Level::Amx).then_some(Amx(()))
    }
}

/// The levels of this machine, slowest first: for tests that run each of them.
pub fn available_levels() -> Vec<Isa> {
    Level::ALL.into_iter().filter_map(|level| Isa::new(level).ok()).collect()
}

/// What was found out about this machine.
#[derive(Clone, Copy, Debug)]
struct Cpu {
    avx2: bool,
    avx512: bool,
    /// Dot products of bf16 are there, and in order.
    dots: bool,
    /// They do more than FMA in the same time. (Intel's do half as much: they are a level there only for who asks for it.)
    quick_dots: bool,
    amx: Result<(), Missing>,
}

impl Cpu {
    /// Asks the processor and the operating system, once per process.
    fn this() -> &'static Cpu {
        static CPU: OnceLock<Cpu> = OnceLock::new();
        CPU.get_or_init(detect)
    }

    fn level(&self, level: Level) -> Result<Isa, IsaError> {
        let has = |yes: bool| if yes { Ok(()) } else { Err(Missing::Instructions) };
        // A level promises the ones below it, so each asks for all of them.
        let found = match level {
            Level::Scalar => Ok(()),
            Level::Avx2 => has(self.avx2),
            Level::Avx512 => has(self.avx2 && self.avx512),
            Level::Avx512Bf16 => has(self.avx2 && self.avx512 && self.dots),
            Level::Amx => has(self.avx2 && self.avx512).and(self.amx),
        };
        found.map(|()| Isa(level)).map_err(|reason| IsaError::Unavailable {
            level,
            reason,
            best: self.best().0.level(),
        })
    }

    fn best(&self) -> (Isa, Option<IsaNote>) {
        let chosen = match *self {
            Cpu { avx2: true, avx512: true, amx: Ok(()), .. } => Level::Amx,
            Cpu { avx2: true, avx512: true, dots: true, quick_dots: true, .. } => Level::Avx512Bf16,
            Cpu { avx2: true, avx512: true, .. } => Level::Avx512,
            Cpu { avx2: true, .. } => Level::Avx2,
            _ => Level::Scalar,
        };
        let note = match self.amx {
            Err(reason @ Missing::Permission(_)) => Some(IsaNote::AmxRefused { reason, chosen }),
            _ => None,
        };
        (Isa(chosen), note)
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Cpu {
    Cpu {
        avx2: is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        avx512: is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq"),
        dots: is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bf16")
            // SAFETY: both features were just seen.
            && unsafe { dots_in_order() },
        quick_dots: is_amd(),
        amx: detect_amx(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Cpu {
    Cpu { avx2: false, avx512: false, dots: false, quick_dots: false, amx: Err(Missing::Instructions) }
}

#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    let id = std::arch::x86_64::__cpuid_count(0, 0);
    [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
}

/// Whether `vdpbf16ps` does what the kernels need: an FMA of the upper halves, then one of the lower halves, each rounded to nearest
/// even with subnormals flushed. Manuals say so; a processor that did it otherwise would change texts.
///
/// # Safety
/// The processor has AVX-512 F and BF16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dots_in_order() -> bool {
    use std::arch::x86_64::{__m512bh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_storeu_ps};
    const ONE: u32 = 0x3F80;
    const BIG: u32 = 0x4B80; // 2^24
    const MINUS_BIG: u32 = 0xCB80;
    const SMALL: u32 = 0x1F80; // 2^-64
    const MINUS_SMALL: u32 = 0xA000; // -2^-63
    let pair = |high: u32, low: u32| high << 16 | low;
    let subnormal = f32::MIN_POSITIVE / 16.0;
    // Sum before, pairs of factors, sum after. In the other order the first two change places, with one rounding both are 1.
    let cases = [
        (1.0, pair(BIG, MINUS_BIG), pair(ONE, ONE), 0.0),
        (1.0, pair(MINUS_BIG, BIG), pair(ONE, ONE), 1.0),
        // 2^-126 - 2^-127 is flushed, and so is a subnormal sum before.
        (f32::MIN_POSITIVE, pair(SMALL, 0), pair(MINUS_SMALL, 0), 0.0),
        (subnormal, pair(0, 0), pair(ONE, ONE), 0.0),
        // A product below all normal numbers is exact inside: 2^-126 + 2^-127.
        (f32::MIN_POSITIVE, pair(SMALL, 0), pair(MINUS_SMALL ^ 0x8000, 0), 1.5 * f32::MIN_POSITIVE),
    ];
    let (mut sums, mut a, mut b) = ([0f32; 16], [0u32; 16], [0u32; 16]);
    for (i, case) in cases.iter().enumerate() {
        (sums[i], a[i], b[i]) = (case.0, case.1, case.2);
    }
    // SAFETY: the arrays hold 64 bytes, for which any bits are a value of these types.
    unsafe {
        let x = std::mem::transmute::<[u32; 16], __m512bh>(a);
        let y = std::mem::transmute::<[u32; 16], __m512bh>(b);
        let found = _mm512_dpbf16_ps(_mm512_loadu_ps(sums.as_ptr()), x, y);
        _mm512_storeu_ps(sums.as_mut_ptr(), found);
    }
    cases.iter().zip(sums).all(|(case, found)| case.3.to_bits() == found.to_bits())
}

/// The processor's word (CPUID leaf 7: EDX bit 22 AMX-BF16, bit 24 AMX-TILE), then the kernel's: Linux hands the tile
/// state out per process, on request, and answers with an error where it does not manage it at all.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
fn detect_amx() -> Result<(), Missing> {
    use std::arch::x86_64::__cpuid_count;
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    if __cpuid_count(0, 0).eax < 7 {
        return Err(Missing::Instructions);
    }
    let features = __cpuid_count(7, 0).edx;
    if features & (1 << 22) == 0 || features & (1 << 24) == 0 {
        return Err(Missing::Instructions);
    }
    // SAFETY: this request of arch_prctl takes a number and no pointer: it touches none of our memory. It only allows
    // this process to use more registers.
    let answer = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    if answer == 0 {
        return Ok(());
    }
    Err(Missing::Permission(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)))
}

/// Only Linux's way of allowing AMX is known here.
#[cfg(all(target_arch = "x86_64", not(all(target_os = "linux", not(miri)))))]
fn detect_amx() -> Result<(), Missing> {
    Err(Missing::Instructions)
}

/// Runs `kernel` with subnormals flushed: FTZ and DAZ set in MXCSR, and MXCSR as it was afterwards.
///
/// Rust regards floating-point operations under a changed MXCSR as undefined behaviour, because the compiler may
/// move, fold or duplicate operations in the belief that the default environment holds. Here it can do none of
/// that across the border: the two `asm!` blocks may read and write any memory as far as the compiler knows, every
/// float that `kernel` computes comes from a load behind the first block and ends in a store before the second, so
/// no operation of the kernel can leave the bracket and none from outside can enter it. Inside it nothing is known
/// at compile time but zeros, which fold to the same bits in both environments.
///
/// # Safety
/// `kernel` must call one function that is not inlined (a `#[target_feature]` function marked `#[inline(never)]`)
/// and nothing else; that function must consist of vector intrinsics, integer arithmetic and control flow, must take
/// its floats from memory and leave its results in memory, and must not panic.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn with_flush(kernel: impl FnOnce()) {
    use std::arch::asm;
    /// MXCSR bits: flush results to zero (15), take subnormal inputs as zero (6).
    const FTZ_DAZ: u32 = 0x8040;
    let mut before: u32 = 0;
    // SAFETY: `stmxcsr` stores four bytes at the given address, which is our own `u32`. SSE is part of x86-64.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack, preserves_flags)) };
    let flushing = before | FTZ_DAZ;
    // SAFETY: `ldmxcsr` reads four bytes of our own `u32`. The value is a stored MXCSR with two defined bits set, so
    // no reserved bit is set and no exception is unmasked. What runs until the restore is `kernel` alone, whose limits
    // are this function's contract; without a panic the restore is always reached.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const flushing, options(nostack, preserves_flags)) };
    kernel();
    // SAFETY: as above, and `before` is the caller's own MXCSR.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const before, options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_levels_and_back() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(level.to_string().to_uppercase().parse(), Ok(level));
        }
        let error = "AVX9".parse::<Level>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`AVX9` is not a CPU level; use one of scalar, avx2, avx512, avx512bf16, amx"
        );
    }

    #[test]
    fn refused_amx_falls_to_avx512_and_says_so() {
        let cpu =
            Cpu { avx2: true, avx512: true, dots: true, quick_dots: false, amx: Err(Missing::Permission(1)) };
        let (isa, note) = cpu.best();
        assert_eq!(isa.level(), Level::Avx512);
        let note = note.unwrap().to_string();
        assert!(note.contains("operating system refuses") && note.contains("using `avx512`"), "{note}");
        let error = cpu.level(Level::Amx).unwrap_err().to_string();
        assert!(error.contains("`amx`") && error.contains("best level here is `avx512`"), "{error}");
    }

    #[test]
    fn dot_products_are_chosen_where_they_are_quick() {
        let quick =
            Cpu { avx2: true, avx512: true, dots: true, quick_dots: true, amx: Err(Missing::Instructions) };
        assert_eq!(quick.best(), (Isa(Level::Avx512Bf16), None));
        let slow = Cpu { quick_dots: false, ..quick };
        assert_eq!(slow.best(), (Isa(Level::Avx512), None));
        assert_eq!(slow.level(Level::Avx512Bf16), Ok(Isa(Level::Avx512Bf16)));
        let out_of_order = Cpu { dots: false, ..quick };
        assert_eq!(out_of_order.best(), (Isa(Level::Avx512), None));
        assert!(out_of_order.level(Level::Avx512Bf16).is_err());
        let amx = Cpu { amx: Ok(()), ..quick };
        assert_eq!(amx.best(), (Isa(Level::Amx), None));
    }

    #[test]
    fn an_absent_level_is_an_error_without_a_note() {
        let cpu = Cpu {
            avx2: true,
            avx512: false,
            dots: false,
            quick_dots: false,
            amx: Err(Missing::Instructions),
        };
        assert_eq!(cpu.best(), (Isa(Level::Avx2), None));
        let expected =
            IsaError::Unavailable { level: Level::Avx512, reason: Missing::Instructions, best: Level::Avx2 };
        assert_eq!(cpu.level(Level::Avx512), Err(expected));
        // AMX alone is no level: f32 activations need the vector form.
        let odd = Cpu { avx2: true, avx512: false, dots: true, quick_dots: true, amx: Ok(()) };
        assert_eq!(odd.best().0.level(), Level::Avx2);
        assert!(odd.level(Level::Amx).is_err());
    }

    #[test]
    fn a_level_proves_the_ones_below_it() {
        for isa in available_levels() {
            assert_eq!(isa.avx2().is_some(), isa.level() >= Level::Avx2);
            assert_eq!(isa.avx512().is_some(), isa.level() >= Level::Avx512);
            assert_eq!(isa.avx512_bf16().is_some(), isa.level() == Level::Avx512Bf16);
            assert_eq!(isa.amx().is_some(), isa.level() == Level::Amx);
        }
        assert_eq!(available_levels()[0].level(), Level::Scalar);
    }
}
