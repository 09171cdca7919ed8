// Checks and times the kernel above. This part is the same in every exported file; the constants
// before it and the launch after it are this problem's.

[[noreturn]] void stop(const char* said) {
  std::fprintf(stderr, "%s: %s\n", kProgram, said);
  std::exit(1);
}

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s: %s\n", kProgram, what, cudaGetErrorString(code));
  std::exit(1);
}

// One set of operands. Each launch that is timed gets another, so that it meets cold data.
struct Operands {
  Element* a;
  Element* b;
  Element* c;
  void* workspace;
  CUtensorMap maps[kMaps > 0 ? kMaps : 1];
};

void encode_maps(Operands& operands);                        // at the end of the file,
void launch(const Operands& operands, cudaStream_t stream);  // for this problem

// The driver's encoder is looked up at run time, so that nothing more than the runtime is linked.
using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

EncodeTiled find_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &status), "cudaGetDriverEntryPointByVersion");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status),
        "cudaGetDriverEntryPoint");
#endif
  if (found == nullptr || status != cudaDriverEntryPointSuccess)
    stop("the driver has no cuTensorMapEncodeTiled, needed one for CUDA 12.0 or later; update it");
  return reinterpret_cast<EncodeTiled>(found);
}

// Dimensions innermost first: inner, outer, batch. Elements outside the operand read as zero.
CUtensorMap encode_map(void* address, const cuuint64_t (&sizes)[3],
                       const cuuint64_t (&strides_bytes)[2], const cuuint32_t (&box)[3],
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) {
  static const EncodeTiled encode = find_encoder();
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encode(&map, kMapType, 3, address, sizes, strides_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) stop("cuTensorMapEncodeTiled refused an operand");
  return map;
}

// `dependent`: the launch may start before the one ahead of it has ended, and waits by itself.
void launch_kernel(const void* kernel, dim3 grid, dim3 block, dim3 cluster, int smem_bytes,
                   bool dependent, void** arguments, cudaStream_t stream) {
  if (smem_bytes > 0)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes),
          "asking for dynamic shared memory");
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  const unsigned blocks = cluster.x * cluster.y * cluster.z;
  if (blocks > 8)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          "asking for a cluster of more than 8 blocks");
  if (blocks > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster.x;
    attribute.val.clusterDim.y = cluster.y;
    attribute.val.clusterDim.z = cluster.z;
  }
  if (dependent) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  check(cudaLaunchKernelExC(&config, kernel, arguments), "launching");
}

__device__ float to_float(__half x) { return __half2float(x); }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void store(__half* to, float x) { *to = __float2half_rn(x); }
__device__ void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// N(0, 1) from a counter: splitmix64 for the bits, Box-Muller for the shape.
__global__ void fill_normal(Element* out, long long count, unsigned long long seed) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count;
       i += step) {
    unsigned long long bits = (seed << 40) + i * 0x9E3779B97F4A7C15ull;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    bits ^= bits >> 31;
    const float u = ((bits >> 40) + 0.5f) * 0x1p-24f, v = (bits & 0xFFFFFF) * 0x1p-24f;
    store(out + i, sqrtf(-2.f * logf(u)) * cospif(2.f * v));
  }
}

// A launch that lets nothing start early: what a kernel that may overlap is timed behind.
__global__ void spacer(unsigned* sink) { sink[threadIdx.x] += 1; }

// The largest error of c over its bound, against sums in double. The bound, for any order of sums,
// is 2 (k + 16) u_acc (|a| @ |b|) + u_out |reference| + an underflow term: Higham, Accuracy and
// Stability of Numerical Algorithms, section 3.1, with room for how tensor cores add.
__global__ void __launch_bounds__(256)
compare(const Element* a, const Element* b, const Element* c, unsigned long long* worst) {
  __shared__ float tile_a[16][17], tile_b[16][17];
  const int x = threadIdx.x, y = threadIdx.y;
  const long long tiles_m = (kM + 15) / 16, tiles_n = (kN + 15) / 16;
  const long long item = blockIdx.x / (tiles_m * tiles_n), tile = blockIdx.x % (tiles_m * tiles_n);
  const long long row0 = tile / tiles_n * 16, col0 = tile % tiles_n * 16;
  a += item * kStrideA, b += item * kStrideB, c += item * kStrideC;
  double sum = 0, magnitude = 0;
  for (long long k0 = 0; k0 < kK; k0 += 16) {
    // x walks the dimension that is contiguous in memory.
    const long long a_row = row0 + (kTransposedA ? x : y), a_k = k0 + (kTransposedA ? y : x);
    const long long b_col = col0 + (kTransposedB ? y : x), b_k = k0 + (kTransposedB ? x : y);
    const float of_a = a_row < kM && a_k < kK
                           ? to_float(a[kTransposedA ? a_k * kLda + a_row : a_row * kLda + a_k])
                           : 0.f;
    const float of_b = b_col < kN && b_k < kK
                           ? to_float(b[kTransposedB ? b_col * kLdb + b_k : b_k * kLdb + b_col])
                           : 0.f;
    tile_a[a_row - row0][a_k - k0] = of_a;
    tile_b[b_k - k0][b_col - col0] = of_b;
    __syncthreads();
    for (int p = 0; p < 16; ++p) {
      const double product = static_cast<double>(tile_a[y][p]) * tile_b[p][x];
      sum += product;
      magnitude += fabs(product);
    }
    __syncthreads();
  }
  if (row0 + y >= kM || col0 + x >= kN) return;
  const double got = to_float(c[(row0 + y) * kLdc + col0 + x]);
  const double slack = 2.0 * (kK + 16) * kUnitAcc * magnitude;
  const double bound = slack + kUnitOut * (fabs(sum) + slack) + kHalfSmallest + kK * kSmallestSum;
  double ratio = fabs(got - sum) / bound;
  if (!(ratio >= 0)) ratio = INFINITY;  // a NaN
  atomicMax(worst, static_cast<unsigned long long>(__double_as_longlong(ratio)));  // order holds
}

double error_ratio(const Operands& operands, cudaStream_t stream) {
  unsigned long long* worst = nullptr;
  check(cudaMalloc(&worst, sizeof(*worst)), "allocating");
  check(cudaMemsetAsync(worst, 0, sizeof(*worst), stream), "clearing");
  const long long tiles = (kM + 15) / 16 * ((kN + 15) / 16) * kBatch;
  compare<<<dim3(static_cast<unsigned>(tiles)), dim3(16, 16), 0, stream>>>(operands.a, operands.b,
                                                                          operands.c, worst);
  check(cudaGetLastError(), "launching the reference");
  double ratio = 0;
  check(cudaMemcpyAsync(&ratio, worst, sizeof(ratio), cudaMemcpyDeviceToHost, stream), "copying");
  check(cudaStreamSynchronize(stream), "the reference");
  check(cudaFree(worst), "freeing");
  return ratio;
}

// As many sets as exceed the L2 threefold, and as memory allows; values differ from set to set.
std::vector<Operands> make_sets(const cudaDeviceProp& gpu, cudaStream_t stream) {
  const auto padded = [](long long elements) { return (elements + 127) / 128 * 128; };
  const long long step_a = padded(kElementsA + kOffset), step_b = padded(kElementsB + kOffset);
  const long long step_c = padded(kElementsC);
  const double set_bytes = 2.0 * (step_a + step_b + step_c);
  size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  const double room_bytes = 0.8 * free_bytes - kWorkspaceBytes;
  if (room_bytes < set_bytes) stop("the GPU's free memory does not hold the operands");
  const double wanted = std::min(256.0, std::max(16.0, 3.0 * gpu.l2CacheSize / set_bytes + 1));
  const double most = std::min(room_bytes, std::max(8e9, 2 * set_bytes)) / set_bytes;
  const long long count = std::max(1LL, static_cast<long long>(std::min(wanted, most)));
  Element *a = nullptr, *b = nullptr, *c = nullptr;
  void* workspace = nullptr;
  check(cudaMalloc(&a, count * step_a * sizeof(Element)), "allocating a");
  check(cudaMalloc(&b, count * step_b * sizeof(Element)), "allocating b");
  check(cudaMalloc(&c, count * step_c * sizeof(Element)), "allocating c");
  if (kWorkspaceBytes > 0) check(cudaMalloc(&workspace, kWorkspaceBytes), "allocating workspace");
  fill_normal<<<1024, 256, 0, stream>>>(a, count * step_a, 1);
  fill_normal<<<1024, 256, 0, stream>>>(b, count * step_b, 2);
  check(cudaMemsetAsync(c, 0xFF, count * step_c * sizeof(Element), stream), "filling c with NaN");
  check(cudaStreamSynchronize(stream), "filling the operands");
  std::vector<Operands> sets(count);
  for (long long i = 0; i < count; ++i) {
    sets[i] = {a + i * step_a + kOffset, b + i * step_b + kOffset, c + i * step_c, workspace, {}};
    encode_maps(sets[i]);
  }
  return sets;
}

cudaGraphExec_t record(const std::vector<Operands>& sets, unsigned* sink, bool kernels,
                       cudaStream_t stream) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
  for (const Operands& operands : sets) {
    if (kOverlaps) spacer<<<1, 32, 0, stream>>>(sink);
    if (kernels) launch(operands, stream);
  }
  check(cudaStreamEndCapture(stream, &graph), "capturing");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  return executable;
}

double replay_us(cudaGraphExec_t graph, cudaEvent_t start, cudaEvent_t end, cudaStream_t stream) {
  float elapsed_ms = 0;
  check(cudaEventRecord(start, stream), "timing");
  check(cudaGraphLaunch(graph, stream), "timing");
  check(cudaEventRecord(end, stream), "timing");
  check(cudaEventSynchronize(end), "timing");
  check(cudaEventElapsedTime(&elapsed_ms, start, end), "timing");
  return 1000.0 * elapsed_ms;
}

// Median device time of one product, by graph replay over all sets. A kernel that may overlap what
// comes before it runs behind a spacer, whose own time is subtracted.
double time_us(const std::vector<Operands>& sets, cudaStream_t stream) {
  unsigned* sink = nullptr;
  cudaEvent_t start, end;
  check(cudaMalloc(&sink, 32 * sizeof(unsigned)), "allocating");
  check(cudaEventCreate(&start), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  const cudaGraphExec_t products = record(sets, sink, true, stream);
  const cudaGraphExec_t spacers = kOverlaps ? record(sets, sink, false, stream) : nullptr;
  for (int i = 0; i < 3; ++i) replay_us(products, start, end, stream);
  std::vector<double> samples;
  for (double spent_us = 0; samples.size() < 5 || (samples.size() < 200 && spent_us < 5e5);) {
    double sample = replay_us(products, start, end, stream);
    spent_us += sample;
    if (kOverlaps) sample -= replay_us(spacers, start, end, stream);
    samples.push_back(sample / sets.size());
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

int run() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
    stop("found no GPU, needed one that runs code for " L2TUNE_ARCH);
  cudaDeviceProp gpu;
  check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  if (gpu.major != kMajor || (kMinor >= 0 && gpu.minor != kMinor)) {
    std::fprintf(stderr, "%s: GPU 0 is %s with compute capability %d.%d, needed one that runs code "
                 "for " L2TUNE_ARCH "; tune for this GPU with `l2tune tune`\n",
                 kProgram, gpu.name, gpu.major, gpu.minor);
    return 1;
  }
  const bool same = std::strcmp(gpu.name, kTunedFor) == 0 && gpu.multiProcessorCount == kTunedSms;
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  const std::vector<Operands> sets = make_sets(gpu, stream);
  launch(sets.front(), stream);
  check(cudaStreamSynchronize(stream), "running the kernel");
  const double before = error_ratio(sets.front(), stream);
  const double took_us = time_us(sets, stream);
  const double worst = std::max(before, error_ratio(sets.back(), stream));
  const bool passed = worst <= 1.0;
  std::printf("%s max error ratio %.3f, %.2f us on %s; tuned for %s (%s)\n",
              passed ? "PASS" : "FAIL", worst, took_us, gpu.name, kTunedFor, kTunedTime);
  if (!same)
    std::fprintf(stderr, "%s: warning: tuned for %s with %d multiprocessors, this is %s with %d; "
                 "its time here says little of the kernel\n",
                 kProgram, kTunedFor, kTunedSms, gpu.name, gpu.multiProcessorCount);
  return passed ? 0 : 1;
}
