// Stands in for libcuda in tests: records what the native path asks of it, and runs nothing.
//
// A function's handle says how its parameters look: bits 0-7, how many there are; bits 8-15, which
// of them, counted from 1, is a tensor map.
#include <cstdint>
#include <cstring>

extern "C" {

struct Launch {
  uint64_t function, stream, attribute_count;
  unsigned char config[56], attributes[144], map[128];
  uint64_t parameters[8];
};
Launch launches[16];
int launch_count, moved_count, capturing, fail_with, contexts_set, has_context = 1;
uint64_t cleared_bytes;

int cuLaunchKernelEx(const unsigned char* config, uint64_t function, void** params, void**) {
  if (fail_with) return fail_with;
  if (!has_context) return 201;
  Launch& launch = launches[launch_count++ % 16];
  std::memset(&launch, 0, sizeof launch);
  launch.function = function;
  std::memcpy(launch.config, config, 56);
  std::memcpy(&launch.stream, config + 32, 8);
  uint32_t count;
  void* attributes;
  std::memcpy(&attributes, config + 40, 8);
  std::memcpy(&count, config + 48, 4);
  launch.attribute_count = count;
  std::memcpy(launch.attributes, attributes, 72 * count);
  for (uint64_t i = 0; i < (function & 255); ++i) {
    if (i + 1 == (function >> 8 & 255))
      std::memcpy(launch.map, params[i], 128);
    else
      std::memcpy(&launch.parameters[i], params[i], 8);
  }
  return 0;
}
int cuStreamIsCapturing(void*, int* status) { return *status = capturing, 0; }
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void*) {
  if (!has_context) return 201;
  std::memset(reinterpret_cast<void*>(address), value, cleared_bytes = count);
  return 0;
}
int cuTensorMapReplaceAddress(void* map, uint64_t address) {
  ++moved_count;
  std::memcpy(map, &address, 8);
  return address % 16 ? 1 : 0;
}
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDevicePrimaryCtxRetain(void**, int) { return 0; }
int cuCtxSetCurrent(void*) { return ++contexts_set, has_context = 1, 0; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_THE_TEST", 0; }
}
