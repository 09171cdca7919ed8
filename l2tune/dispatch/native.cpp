// The hot path of l2tune.matmul: find the plan of a problem and launch it, or call at::matmul.
// Does what dispatch/matmul.py does, and hands that function every rare case.
#define PY_SSIZE_T_CLEAN
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <unordered_map>

#include "launch.h"

namespace {

using at::Tensor;
using l2tune::Plan;

constexpr int64_t kMaxDims = 8;
constexpr size_t kMaxEntries = 1 << 16;

// Everything that decides the plan: dtypes, devices, sizes, strides, alignment to 16 bytes, and
// whether sums in half precision are allowed.
struct Key {
  Key(const Tensor& a, const Tensor& b, const Tensor& out, uint64_t addresses) {
    add(a), add(b), words[0] |= (addresses & 15) << 48;
    words[0] |= static_cast<uint64_t>(at::globalContext().allowFP16AccumulationCuBLAS()) << 52;
    if (out.defined()) add(out);
  }
  void add(const Tensor& x) {
    words[count++] = static_cast<uint8_t>(x.scalar_type()) | static_cast<uint64_t>(x.dim()) << 8 |
                     static_cast<uint64_t>(static_cast<uint8_t>(x.get_device())) << 16;
    for (int64_t size : x.sizes()) words[count++] = size;
    for (int64_t stride : x.strides()) words[count++] = stride;
  }
  bool operator==(const Key& other) const {
    return count == other.count && !std::memcmp(words.data(), other.words.data(), 8 * count);
  }
  uint32_t count = 0;
  std::array<uint64_t, 3 + 6 * kMaxDims> words;  // those beyond `count` are never read
};

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.count;
    for (uint32_t i = 0; i < key.count; ++i)
      hash = (hash ^ key.words[i]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 32;
    return hash;
  }
};

struct State {  // of the process; what changes needs the GIL
  std::unordered_map<Key, std::shared_ptr<Plan>, Hash> table;  // null: torch
  PyObject *in_python, *in_torch, *make, *out_name;
  c10::DispatchKey dense, autocast;
  uint64_t plain_keys;
  std::string driver_path;
  std::unique_ptr<const l2tune::Driver> driver;  // from the first plan on
  // `CUDAStream::stream`, whose object has a c10::Stream as its only member: the same in all
  // versions, which c10's own way is not, and cheaper than Python's _cuda_getCurrentRawStream.
  void* (*stream_handle)(const c10::Stream*) = nullptr;
  // The allocator in force, which c10::GetAllocator misses where a user has replaced it.
  const std::atomic<c10::Allocator*>* allocator = nullptr;
  unsigned long long served = 0;
};
State& state() {
  static State& kept = *new State;  // never destroyed: Python may be gone by then
  return kept;
}

uint64_t address_of(const Tensor& x) {
  return x.defined() ? reinterpret_cast<uint64_t>(x.const_data_ptr()) : 0;
}

// Whether a tensor is dense, on the device, and its memory holds its values: no key of a negation,
// of sparse or nested storage, of vmap, of a subclass. An allow-list, so that new keys are refused.
bool is_plain(const Tensor& x) {
  return !(x.key_set().raw_repr() & ~state().plain_keys) && !x._fw_grad(/*level=*/0).defined();
}

// Whether nothing but the operands decides what happens: no autocast, dispatch mode or transform.
bool is_unwatched() {
  const auto tls = c10::impl::tls_local_dispatch_key_set();
  return !(tls.included_.raw_repr() & ~c10::default_included_set.raw_repr()) &&
         tls.excluded_.has(state().autocast);
}

bool shares_memory(const Tensor& x, const Tensor& y) {
  return x.has_storage() && y.has_storage() && x.storage().data() &&
         x.storage().data() == y.storage().data();
}

// Not through the dispatcher, since nothing watches.
Tensor allocate(c10::IntArrayRef shape, c10::ScalarType dtype, c10::Device device) {
  if (!state().allocator) return at::empty(shape, at::TensorOptions(dtype).device(device));
  return Tensor(at::detail::empty_generic(shape, state().allocator->load(),
                                          c10::DispatchKeySet(state().dense), dtype, std::nullopt));
}

void* current_stream(c10::Device device) {
  if (!state().stream_handle) return nullptr;
  const c10::Stream stream = c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
  return state().stream_handle(&stream);
}

bool runs(const Plan& plan, void* stream) {
  if (plan.eager == plan.graph) return plan.eager;
  int status = 0;
  const int code = state().driver->is_capturing(stream, &status);
  if (code == l2tune::kInvalidContext) return plan.eager;  // no CUDA work in this thread yet
  return code == 0 && (status ? plan.graph : plan.eager);  // else torch tells what is wrong
}

// Writes `c`, which is allocated where it is undefined.
void launch(Plan& plan, const Tensor& a, const Tensor& b, Tensor& c, void* stream) {
  const l2tune::Driver& driver = *state().driver;
  const c10::Device device = a.device();
  c10::OptionalDeviceGuard guard;
  if (c10::impl::getDeviceGuardImpl(device.type())->getDevice() != device)
    guard.reset_device(device);
  c.defined() ? c.unsafeGetTensorImpl()->bump_version()
              : void(c = allocate(plan.shape, a.scalar_type(), device));
  Tensor scratch;
  if (plan.workspace_bytes) {
    // From torch's allocator on the current stream: private to a graph under capture, and safe to
    // release as soon as the launch is queued.
    scratch = allocate({static_cast<int64_t>(plan.workspace_bytes)}, c10::kByte, device);
    if (plan.workspace_zeroed)
      driver.in_context(device.index(), "cuMemsetD8Async", [&] {
        return driver.set_bytes(address_of(scratch), 0, plan.workspace_bytes, stream);
      });
  }
  plan.run(driver, {address_of(a), address_of(b), address_of(c), address_of(scratch)},
           device.index(), stream);
}

void forget() {
  decltype(state().table) old;  // releasing a kernel may run Python code, which may come back here
  old.swap(state().table);
}

// The plan of a problem, or null where torch is to answer; asks Python about a new problem.
std::shared_ptr<Plan> find(PyObject* const* args, PyObject* given, const Tensor& a,
                           const Tensor& b, const Tensor& out) {
  State& s = state();
  const uint64_t addresses = address_of(a) | address_of(b) | address_of(out);
  const Key key(a, b, out, addresses);
  if (const auto found = s.table.find(key); found != s.table.end()) return found->second;
  THPObjectPtr made(PyObject_CallFunction(s.make, "OOOK", args[0], args[1],
                                          given ? given : Py_None, addresses));
  if (!made) throw python_error();
  if (made.get() == Py_None) return nullptr;  // to be asked about again
  std::shared_ptr<Plan> plan;
  if (!PyTuple_Check(made.get()) || PyTuple_GET_SIZE(made.get())) {  // () is torch
    if (!s.driver) s.driver = std::make_unique<l2tune::Driver>(s.driver_path);
    TORCH_CHECK(s.allocator || s.dense == c10::DispatchKey::CPU, "l2tune: no libc10_cuda.so found");
    plan = std::make_shared<Plan>(made.get());
  }
  if (s.table.size() >= kMaxEntries) forget();
  return s.table[key] = plan;
}

PyObject* matmul(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  HANDLE_TH_ERRORS
  State& s = state();
  const bool named = names && PyTuple_GET_SIZE(names) == 1 &&
                     PyTuple_GET_ITEM(names, 0) == s.out_name;  // interned, as names in code are
  if (count != 2 || (names && !named)) return PyObject_Vectorcall(s.in_python, args, count, names);
  PyObject* const given = named && args[2] != Py_None ? args[2] : nullptr;
  if (!THPVariable_CheckExact(args[0]) || !THPVariable_CheckExact(args[1]) ||
      (given && !THPVariable_CheckExact(given)))
    return PyObject_Vectorcall(s.in_torch, args, count, names);
  // Copies, as torch's argument parser makes them: a tensor's second C++ reference takes the GIL to
  // keep its Python object alive, and the kernels below at::matmul would take it many times.
  const Tensor a = THPVariable_Unpack(args[0]), b = THPVariable_Unpack(args[1]);
  Tensor c = given ? THPVariable_Unpack(given) : Tensor();
  if (at::impl::torch_function_mode_enabled() || a.dim() > kMaxDims || b.dim() > kMaxDims ||
      (given && (c.dim() > kMaxDims || shares_memory(c, a) || shares_memory(c, b))))
    return PyObject_Vectorcall(s.in_python, args, count, names);
  std::shared_ptr<Plan> plan;
  if (is_plain(a) && is_plain(b) && is_unwatched() &&
      !(c10::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad())) &&
      (!given || (is_plain(c) && !c.requires_grad() &&
                  Py_TYPE(given) == reinterpret_cast<PyTypeObject*>(THPVariableClass))))
    plan = find(args, given, a, b, c);
  void* const stream = plan ? current_stream(a.device()) : nullptr;
  if (plan && runs(*plan, stream)) {
    ++s.served;
    const py::gil_scoped_release unlocked;  // allocating and a full launch queue can block
    launch(*plan, a, b, c, stream);
  } else {
    const py::gil_scoped_release unlocked;
    given ? void(at::matmul_out(c, a, b)) : void(c = at::matmul(a, b));
  }
  return given ? Py_NewRef(given) : THPVariable_Wrap(std::move(c));
  END_HANDLE_TH_ERRORS
}

// init(in_python, in_torch, make, doc, device, driver_path) -> matmul
PyObject* init(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  State& s = state();
  const char *doc = nullptr, *device = nullptr, *path = nullptr;
  if (!PyArg_ParseTuple(args, "OOOsss", &s.in_python, &s.in_torch, &s.make, &doc, &device, &path))
    return nullptr;
  for (PyObject* kept : {s.in_python, s.in_torch, s.make}) Py_INCREF(kept);
  s.out_name = PyUnicode_InternFromString("out");
  s.driver_path = path;
  const bool on_gpu = !std::strcmp(device, "cuda");  // anything else is for tests
  s.dense = on_gpu ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  s.autocast = on_gpu ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  const auto autograd = c10::getAutogradRelatedKeySetFromBackend(c10::toBackendComponent(s.dense));
  s.plain_keys = (autograd | c10::DispatchKeySet({s.dense, s.autocast})).raw_repr();
  if (void* c10_cuda = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD); c10_cuda && on_gpu) {
    s.stream_handle = l2tune::look_up(c10_cuda, "_ZNK3c104cuda10CUDAStream6streamEv");
    s.allocator = l2tune::look_up(c10_cuda, "_ZN3c104cuda20CUDACachingAllocator9allocatorE");
  }
  auto* function = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(matmul));
  auto* method = new PyMethodDef{"matmul", function, METH_FASTCALL | METH_KEYWORDS, strdup(doc)};
  THPObjectPtr module_name(PyUnicode_InternFromString("l2tune"));
  return PyCFunction_NewEx(method, nullptr, module_name.get());
  END_HANDLE_TH_ERRORS
}

PyObject* clear(PyObject*, PyObject*) { return forget(), Py_NewRef(Py_None); }
PyObject* served(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(state().served); }

PyMethodDef methods[] = {{"init", init, METH_VARARGS, nullptr},
                         {"clear", clear, METH_NOARGS, nullptr},
                         {"served", served, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "l2tune_native", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_l2tune_native() { return PyModule_Create(&module); }
