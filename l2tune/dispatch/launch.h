// A plan as the native path keeps it: what Python describes (plan.NativePlan), and its launch.
//
// No CUDA header is included and no CUDA library linked, so that any C++ compiler builds this
// against any torch, one without CUDA too: libcuda's symbols are looked up at run time.
#pragma once
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/python_headers.h>

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace l2tune {

struct Symbol {
  void* address;
  template <typename T> operator T*() const { return reinterpret_cast<T*>(address); }
};
inline Symbol look_up(void* library, const char* name) {
  void* address = library ? dlsym(library, name) : nullptr;
  TORCH_CHECK(address, "l2tune: ", name, " is not found; set L2TUNE_NATIVE=off");
  return {address};
}

struct LaunchConfig {  // as cuda.h of CUDA 12 and 13 declares CUlaunchConfig
  uint32_t grid[3], block[3], smem_bytes;
  void *stream, *attributes;
  uint32_t attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);
constexpr int kInvalidContext = 201;

struct Driver {
  explicit Driver(const std::string& path) : lib(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  void check(int code, const char* call) const {
    if (code == 0) return;
    const char* name = nullptr;
    error_name(code, &name);
    TORCH_CHECK(false, "l2tune.matmul: ", call, " failed with ", name ? name : "an unknown error",
                " (", code, "); L2TUNE_DISABLE=1 restores torch.matmul");
  }
  // Makes a call, again with the device's primary context where the thread has none yet.
  template <typename Call>
  void in_context(int index, const char* name, Call call) const {
    int code = call(), device = 0;
    if (code == kInvalidContext) {
      void* context = nullptr;
      check(get_device(&device, index), "cuDeviceGet");
      check(retain_context(&context, device), "cuDevicePrimaryCtxRetain");
      check(set_context(context), "cuCtxSetCurrent");
      code = call();
    }
    check(code, name);
  }

  void* lib;
  int (*launch)(LaunchConfig*, void*, void**, void**) = look_up(lib, "cuLaunchKernelEx");
  int (*is_capturing)(void* stream, int*) = look_up(lib, "cuStreamIsCapturing");
  int (*set_bytes)(uint64_t, unsigned char, size_t, void*) = look_up(lib, "cuMemsetD8Async");
  int (*move_map)(void* map, uint64_t) = look_up(lib, "cuTensorMapReplaceAddress");
  int (*get_device)(int*, int index) = look_up(lib, "cuDeviceGet");
  int (*retain_context)(void**, int device) = look_up(lib, "cuDevicePrimaryCtxRetain");
  int (*set_context)(void*) = look_up(lib, "cuCtxSetCurrent");
  int (*error_name)(int code, const char**) = look_up(lib, "cuGetErrorName");
};

struct alignas(64) Slot {  // of a number, or of a tensor map
  unsigned char bytes[128];
  unsigned long long address;  // that a map points to
  int operand;
};
struct Launch {
  void* function;
  LaunchConfig config;
  std::string attributes;
  std::vector<void*> params;
};

// What one problem's calls do. Parameters point into it, so it stays where it was made.
class Plan {
 public:
  explicit Plan(PyObject* described) {
    PyObject *sizes = nullptr, *parts = nullptr, *kernel = nullptr;
    if (!PyArg_ParseTuple(described, "ppO!KpO!O", &eager, &graph, &PyTuple_Type, &sizes,
                          &workspace_bytes, &workspace_zeroed, &PyTuple_Type, &parts, &kernel))
      throw python_error();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); ++i)
      shape.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) add(PyTuple_GET_ITEM(parts, i));
    if (PyErr_Occurred()) throw python_error();
    kernel_ = Py_NewRef(kernel);
  }
  ~Plan() { Py_XDECREF(kernel_); }  // so the last reference goes while the GIL is held

  // Launches on `stream`; `operands` are the addresses of a, b, c and the workspace.
  void run(const Driver& driver, std::array<uint64_t, 4> operands, int device, void* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);  // the GIL is not held here
    operands_ = operands;
    for (auto& map : maps_) {
      const uint64_t address = operands_[map->operand];
      if (map->address == address) continue;
      driver.check(driver.move_map(map->bytes, address), "cuTensorMapReplaceAddress");
      map->address = address;
    }
    for (auto& part : launches_) {
      part->config.stream = stream;
      driver.in_context(device, "cuLaunchKernelEx", [&] {
        return driver.launch(&part->config, part->function, part->params.data(), nullptr);
      });
    }
  }

  int eager, graph, workspace_zeroed;
  unsigned long long workspace_bytes;
  std::vector<int64_t> shape;

 private:
  void add(PyObject* described) {
    auto part = std::make_unique<Launch>();
    const char *config = nullptr, *attributes = nullptr;
    Py_ssize_t config_size = 0, attributes_size = 0;
    PyObject* params = nullptr;
    if (!PyArg_ParseTuple(described, "Ky#y#O!", &part->function, &config, &config_size,
                          &attributes, &attributes_size, &PyTuple_Type, &params))
      throw python_error();
    TORCH_CHECK(config_size == sizeof(LaunchConfig));
    std::memcpy(&part->config, config, config_size);
    part->attributes.assign(attributes, attributes_size);
    part->config.attributes = part->attributes.data();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(params); ++i)
      part->params.push_back(parameter(PyTuple_GET_ITEM(params, i)));
    launches_.push_back(std::move(part));
  }

  // Kinds: 0 to 3, the address of that operand; 4, a number; 5 to 7, a tensor map of a, b or c.
  void* parameter(PyObject* described) {
    int kind = 0;
    const char* data = nullptr;
    Py_ssize_t size = 0;
    auto slot = std::make_unique<Slot>();
    if (!PyArg_ParseTuple(described, "iy#K", &kind, &data, &size, &slot->address))
      throw python_error();
    TORCH_CHECK(kind >= 0 && kind < 8 && size == (kind < 4 ? 0 : kind == 4 ? 8 : 128));
    if (kind < 4) return &operands_[kind];
    slot->operand = kind - 5;
    std::memcpy(slot->bytes, data, size);
    return (kind == 4 ? numbers_ : maps_).emplace_back(std::move(slot))->bytes;
  }

  PyObject* kernel_ = nullptr;  // keeps the modules loaded
  std::mutex mutex_;            // of all below, which threads share
  std::array<uint64_t, 4> operands_{};
  std::vector<std::unique_ptr<Slot>> numbers_, maps_;
  std::vector<std::unique_ptr<Launch>> launches_;
};
}  // namespace l2tune
