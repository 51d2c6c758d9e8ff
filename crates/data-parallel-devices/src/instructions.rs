//! The vector instructions that this process uses. They are chosen once, for all operations of the library: its kernels, its
//! matrix products and its sums of gradients. candle chooses for its own operations.

use candle_core::{Result, bail};
use pulp::{Arch, Simd, WithSimd};
use std::sync::LazyLock;

/// The environment variable with the name of the widest [`InstructionSet`] that the process may use.
pub const MAX_CPU_ISA: &str = "DATA_PARALLEL_MAX_CPU_ISA";

/// Vector instructions of a processor.
///
/// All but [`Scalar`](Self::Scalar) have a fused multiply-add, and give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// The instructions that each processor has. A product is rounded before it is added, so the last digits differ.
    Scalar,
    /// NEON of ARM in 64 bits: vectors of 4 floats.
    Neon,
    /// AVX2 with FMA: vectors of 8 floats.
    Avx2,
    /// AVX-512 as in Intel's Skylake or AMD's Zen 4: vectors of 16 floats.
    Avx512,
}

impl InstructionSet {
    /// The sets of this architecture, from the narrowest on.
    #[cfg(target_arch = "x86_64")]
    const ALL: &[Self] = &[Self::Scalar, Self::Avx2, Self::Avx512];
    /// The sets of this architecture, from the narrowest on.
    #[cfg(target_arch = "aarch64")]
    const ALL: &[Self] = &[Self::Scalar, Self::Neon];
    /// The sets of this architecture, from the narrowest on.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const ALL: &[Self] = &[Self::Scalar];

    /// The set's name in [`MAX_CPU_ISA`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// The features that a processor needs. Each of `pulp` and `gemm` needs some of them.
    fn features(self) -> &'static [&'static str] {
        match self {
            Self::Scalar => &[],
            Self::Neon => &["neon"],
            Self::Avx2 => &AVX512[..AVX2_FEATURES],
            Self::Avx512 => &AVX512,
        }
    }

    /// The widest set of this architecture of which the processor `has` all features, and which is not above `most`.
    fn choose(has: impl Fn(&str) -> bool, most: Option<Self>) -> Self {
        let is_allowed = |set: Self| most.is_none_or(|most| set <= most);
        let is_whole = |set: Self| set.features().iter().all(|feature| has(feature));
        let mut sets = Self::ALL.iter().copied().rev();
        sets.find(|&set| is_allowed(set) && is_whole(set))
            .unwrap_or(Self::Scalar)
    }

    /// The set with a name that the variable has.
    fn parse(name: &str) -> std::result::Result<Self, String> {
        let set = Self::ALL.iter().find(|set| set.name() == name);
        set.copied().ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|set| set.name()).collect();
            let names = names.join(", ");
            format!("the variable {MAX_CPU_ISA} is {name:?}; here it can be: {names}")
        })
    }

    /// The code of `pulp` for this set, which the processor has.
    fn arch(self) -> Arch {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => pulp::x86::V3::try_new().map_or(Arch::Scalar, Arch::V3),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => pulp::x86::V4::try_new().map_or(Arch::Scalar, Arch::V4),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => Arch::new(),
            _ => Arch::Scalar,
        }
    }
}

/// The features of [`InstructionSet::Avx512`]; the first are those of [`InstructionSet::Avx2`].
const AVX512: [&str; 20] = [
    "sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "fxsr", "popcnt", "avx", "avx2", "bmi1",
    "bmi2", "fma", "lzcnt", "f16c", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
];

const AVX2_FEATURES: usize = 15;

/// True if this processor, and its system, have a feature.
#[cfg(target_arch = "x86_64")]
fn processor_has(feature: &str) -> bool {
    macro_rules! detect {
        ($($name:tt)*) => {
            match feature {
                $($name => std::arch::is_x86_feature_detected!($name),)*
                _ => false,
            }
        };
    }
    detect!(
        "sse" "sse2" "sse3" "ssse3" "sse4.1" "sse4.2" "fxsr" "popcnt" "avx" "avx2" "bmi1"
        "bmi2" "fma" "lzcnt" "f16c" "avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl"
    )
}

/// True if this processor, and its system, have a feature.
#[cfg(target_arch = "aarch64")]
fn processor_has(feature: &str) -> bool {
    feature == "neon" && std::arch::is_aarch64_feature_detected!("neon")
}

/// True if this processor, and its system, have a feature.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn processor_has(_: &str) -> bool {
    false
}

/// The choice of this process.
struct Choice {
    set: InstructionSet,
    arch: Arch,
    /// The message about a wrong value of the variable.
    error: Option<String>,
}

static CHOICE: LazyLock<Choice> = LazyLock::new(|| {
    let asked = std::env::var_os(MAX_CPU_ISA).filter(|name| !name.is_empty());
    let most = asked.map(|name| InstructionSet::parse(&name.to_string_lossy()));
    let (most, error) = match most.transpose() {
        Ok(most) => (most, None),
        Err(error) => (None, Some(error)),
    };
    let set = InstructionSet::choose(processor_has, most);
    Choice {
        set,
        arch: set.arch(),
        error,
    }
});

/// The instruction set of this process: the widest that the processor has as a whole, or the widest that [`MAX_CPU_ISA`]
/// allows.
///
/// ```
/// let name = data_parallel_devices::instruction_set().name();
/// assert!(["scalar", "neon", "avx2", "avx512"].contains(&name));
/// ```
pub fn instruction_set() -> InstructionSet {
    CHOICE.set
}

/// Checks the variable [`MAX_CPU_ISA`].
///
/// # Errors
/// If its value is no name of a set of this architecture. Operations then use the widest set.
pub fn check_max_cpu_isa() -> Result<()> {
    match &CHOICE.error {
        Some(error) => bail!("{error}"),
        None => Ok(()),
    }
}

/// Runs `op`, compiled for [`instruction_set`].
#[inline(always)]
pub fn dispatch<Op: WithSimd>(op: Op) -> Op::Output {
    CHOICE.arch.dispatch(op)
}

/// Runs `f`, compiled for [`instruction_set`]: its loops are vectorized. With all sets but
/// [`Scalar`](InstructionSet::Scalar) the bits of a result are the same: no sum is reordered, and products are only fused
/// where the source says so.
///
/// Code that is not inlined is compiled for the oldest processor, without a warning. So closures and the functions that they
/// call are `#[inline(always)]`, and loops replace iterators with closures.
///
/// ```
/// let sum = data_parallel_devices::vectorized(#[inline(always)] || (1..=4).sum::<i32>());
/// assert_eq!(sum, 10);
/// ```
#[inline(always)]
pub fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    // a closure has this trait as well, but is called there by a function that is not always inlined
    struct Call<F>(F);
    impl<R, F: FnOnce() -> R> WithSimd for Call<F> {
        type Output = R;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> R {
            (self.0)()
        }
    }
    dispatch(Call(f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_widest_whole_set_is_chosen() {
        use InstructionSet::{Avx2, Avx512, Scalar};
        let choose = |without: &[&str], most| {
            InstructionSet::choose(|feature| !without.contains(&feature), most)
        };
        let avx512 = &AVX512[AVX2_FEATURES..];
        assert_eq!(choose(&[], None), Avx512);
        assert_eq!(choose(&[], Some(Avx2)), Avx2);
        assert_eq!(choose(&[], Some(Scalar)), Scalar);
        assert_eq!(choose(avx512, None), Avx2, "Haswell, Zen");
        assert_eq!(choose(avx512, Some(Avx512)), Avx2, "a limit adds nothing");
        for part in avx512 {
            assert_eq!(choose(&[part], None), Avx2, "Knights Landing has a part");
        }
        // with a fused multiply-add: AMD's FX, A10, Opteron 6300
        let opteron_g5 = [avx512, &["avx2", "bmi1", "bmi2"]].concat();
        assert_eq!(choose(&opteron_g5, None), Scalar);
        for part in &AVX512[..AVX2_FEATURES] {
            assert_eq!(choose(&[part], None), Scalar, "all but {part}");
        }
        assert_eq!(choose(&AVX512, None), Scalar);
    }

    /// `pulp` finds the instructions that are chosen here.
    #[test]
    fn the_code_is_that_of_the_set() {
        for set in InstructionSet::ALL.iter().copied() {
            let has_all = set.features().iter().all(|feature| processor_has(feature));
            let is_scalar = matches!(set.arch(), Arch::Scalar);
            if has_all {
                assert_eq!(is_scalar, set == InstructionSet::Scalar, "{set:?}");
            }
        }
    }

    #[test]
    fn a_wrong_name_is_an_error() {
        for set in InstructionSet::ALL.iter().copied() {
            assert_eq!(InstructionSet::parse(set.name()).unwrap(), set);
        }
        let error = InstructionSet::parse("AVX").unwrap_err();
        let says = r#"the variable DATA_PARALLEL_MAX_CPU_ISA is "AVX"; here it can be: scalar"#;
        assert!(error.starts_with(says), "{error}");
    }
}
