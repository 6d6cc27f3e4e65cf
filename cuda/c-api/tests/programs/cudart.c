// As much of the CUDA runtime as PyTorch needs for an allocation of its allocator: one device, and no driver.
int cudaGetDevice(int *device) {
  *device = 0;
  return 0;
}

int cudaGetDeviceCount(int *count) {
  *count = 1;
  return 0;
}
