//! Tells the crate how it is optimized. With the feature `cuda`: compiles the kernels of `src/cuda` to PTX, which the driver translates for its
//! GPU: any from the compute capability on that candle's own kernels are compiled for. Each file is compiled
//! for both types that a tape's memory may have.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let level = std::env::var("OPT_LEVEL").expect("cargo sets it");
    println!("cargo::rustc-env=OPT_LEVEL={level}");
    #[cfg(feature = "cuda")]
    for kernels in ["elementwise", "norm", "one_channel"] {
        compile(kernels, "f32", "float");
        compile(kernels, "bf16", "__nv_bfloat16");
    }
}

#[cfg(feature = "cuda")]
fn compile(kernels: &str, name: &str, element: &str) {
    let source = format!("src/cuda/{kernels}.cu");
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed=src/cuda/common.cuh");
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let toolkit = cudaforge::CudaToolkit::detect().expect("the CUDA toolkit is needed");
    let gpu = cudaforge::detect_compute_cap().expect("CUDA_COMPUTE_CAP, or a GPU, is needed");
    let status = std::process::Command::new(&toolkit.nvcc_path)
        .args(["--ptx", "-O3", "-std=c++17"])
        .arg(format!("-arch=compute_{}", gpu.base()))
        .arg(format!("-DREAL={element}"))
        .args(["-o", &format!("{out}/{kernels}_{name}.ptx"), &source])
        .status()
        .expect("nvcc starts");
    assert!(status.success(), "nvcc cannot compile {source}");
}
