// What kernels' files use of PyTorch's C++ interface, in a few hundred lines, so that they compile without PyTorch.
//
// For device code alone (NVRTC) that is a handful of type names. For a host compiler it is enough of at::Tensor to call
// a launcher: sizes, strides and memory are right, and no operation computes anything but fills. Every header of
// torch, ATen, c10 and pybind11 is this one.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace c10 {
using Half = __half;
using BFloat16 = __nv_bfloat16;
}  // namespace c10
namespace at {
using c10::BFloat16;
using c10::Half;
struct PhiloxCudaState {
    unsigned long long seed_ = 0, offset_ = 0;
};
namespace cuda {
#ifdef __CUDACC_RTC__
namespace philox {
struct Seeds {
    unsigned long long a, b;
};
__device__ inline Seeds unpack(PhiloxCudaState s) { return {s.seed_, s.offset_}; }
}  // namespace philox
#endif
}  // namespace cuda
}  // namespace at

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace at {
namespace cuda {
namespace philox {
__host__ __device__ inline std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState s) { return {s.seed_, s.offset_}; }
}  // namespace philox
}  // namespace cuda
}  // namespace at

namespace cubridge {
// Memory that a launcher may hand to a kernel: what the recorder knows of it.
struct Memory {
    void* data;
    size_t bytes;
    int id;
    std::string dtype, fill;
};
inline std::vector<std::shared_ptr<Memory>>& memories() {
    static std::vector<std::shared_ptr<Memory>> all;
    return all;
}
// Memory is never given back while the process lives: the addresses of one call are never those of another.
inline std::shared_ptr<Memory> allocate(size_t bytes, const std::string& dtype, const std::string& fill) {
    auto made = std::make_shared<Memory>();
    size_t room = (bytes + 8191) / 4096 * 4096;
    made->data = std::aligned_alloc(4096, room);
    if (!made->data) throw std::runtime_error("out of memory");
    made->bytes = bytes, made->dtype = dtype, made->fill = fill;
    made->id = static_cast<int>(memories().size());
    memories().push_back(made);
    return made;
}
}  // namespace cubridge

namespace c10 {
enum class ScalarType : int8_t { Byte, Char, Short, Int, Long, Half, Float, Double, Bool, BFloat16, Undefined };
enum class DeviceType : int8_t { CPU, CUDA };
inline size_t elementSize(ScalarType t) {
    static const size_t bytes[] = {1, 1, 2, 4, 8, 2, 4, 8, 1, 2, 0};
    return bytes[static_cast<int>(t)];
}
inline const char* toString(ScalarType t) {
    static const char* names[] = {"uint8",   "int8",    "int16", "int32",    "int64",    "float16",
                                  "float32", "float64", "bool",  "bfloat16", "undefined"};
    return names[static_cast<int>(t)];
}
inline std::ostream& operator<<(std::ostream& out, ScalarType t) { return out << toString(t); }
template <class T> struct TypeOf {};
#define CUBRIDGE_TYPE(C, S) \
    template <> struct TypeOf<C> { static constexpr ScalarType value = ScalarType::S; };
CUBRIDGE_TYPE(uint8_t, Byte) CUBRIDGE_TYPE(int8_t, Char) CUBRIDGE_TYPE(int16_t, Short) CUBRIDGE_TYPE(int, Int)
CUBRIDGE_TYPE(int64_t, Long) CUBRIDGE_TYPE(__half, Half) CUBRIDGE_TYPE(float, Float) CUBRIDGE_TYPE(double, Double)
CUBRIDGE_TYPE(bool, Bool) CUBRIDGE_TYPE(__nv_bfloat16, BFloat16)
#undef CUBRIDGE_TYPE
template <class T> struct CppTypeToScalarType : TypeOf<T> {};

template <class T> struct ArrayRef {
    const T* begin_ = nullptr;
    size_t size_ = 0;
    std::vector<T> own;
    ArrayRef() = default;
    ArrayRef(std::initializer_list<T> v) : own(v) { set(); }
    ArrayRef(const std::vector<T>& v) : own(v) { set(); }
    ArrayRef(const T& one) : own{one} { set(); }
    template <size_t N> ArrayRef(const T (&all)[N]) : own(all, all + N) { set(); }
    ArrayRef(const T* from, const T* to) : own(from, to) { set(); }
    ArrayRef(const T* at, size_t count) : own(at, at + count) { set(); }
    ArrayRef(const ArrayRef& o) : own(o.begin(), o.end()) { set(); }
    ArrayRef& operator=(const ArrayRef& o) {
        own.assign(o.begin(), o.end());
        set();
        return *this;
    }
    void set() { begin_ = own.data(), size_ = own.size(); }
    const T* begin() const { return begin_; }
    const T* end() const { return begin_ + size_; }
    const T* data() const { return begin_; }
    size_t size() const { return size_; }
    bool empty() const { return !size_; }
    const T& operator[](size_t i) const { return begin_[i]; }
    const T& at(size_t i) const { return begin_[i]; }
    const T& back() const { return begin_[size_ - 1]; }
    std::vector<T> vec() const { return {begin(), end()}; }
    bool equals(const ArrayRef& o) const { return size_ == o.size_ && std::equal(begin(), end(), o.begin()); }
};
template <class T> bool operator==(const ArrayRef<T>& a, const ArrayRef<T>& b) { return a.equals(b); }
template <class T> bool operator!=(const ArrayRef<T>& a, const ArrayRef<T>& b) { return !a.equals(b); }
template <class T> std::ostream& operator<<(std::ostream& out, const ArrayRef<T>& v) {
    for (auto& x : v) out << x << " ";
    return out;
}
using IntArrayRef = ArrayRef<int64_t>;

struct Device {
    DeviceType kind = DeviceType::CUDA;
    int8_t index_ = 0;
    Device() = default;
    Device(DeviceType t, int i = 0) : kind(t), index_(static_cast<int8_t>(i)) {}
    Device(const std::string&) {}
    Device(const char*) {}
    DeviceType type() const { return kind; }
    int8_t index() const { return index_; }
    bool is_cuda() const { return kind == DeviceType::CUDA; }
    bool is_cpu() const { return !is_cuda(); }
    bool operator==(const Device& o) const { return kind == o.kind && index_ == o.index_; }
    bool operator!=(const Device& o) const { return !(*this == o); }
};
inline std::ostream& operator<<(std::ostream& out, const Device& d) { return out << (d.is_cuda() ? "cuda" : "cpu"); }

struct Scalar {
    double value = 0;
    Scalar() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> Scalar(T v) : value(double(v)) {}
    template <class T> T to() const { return T(value); }
    double toDouble() const { return value; }
};
struct TensorOptions {
    ScalarType type_ = ScalarType::Float;
    Device device_;
    TensorOptions() = default;
    TensorOptions(ScalarType t) : type_(t) {}
    TensorOptions(Device d) : device_(d) {}
    TensorOptions(DeviceType d) : device_(d) {}
    TensorOptions dtype(ScalarType t) const { TensorOptions o = *this; o.type_ = t; return o; }
    ScalarType dtype() const { return type_; }
    TensorOptions device(Device d) const { TensorOptions o = *this; o.device_ = d; return o; }
    TensorOptions device(DeviceType d, int = 0) const { return device(Device(d)); }
    Device device() const { return device_; }
    TensorOptions layout(int) const { return *this; }
    TensorOptions requires_grad(bool) const { return *this; }
    TensorOptions memory_format(int) const { return *this; }
};
using std::make_optional;
using std::nullopt;
using std::optional;
}  // namespace c10

namespace at {
using namespace c10;
constexpr int kStrided = 0;
enum class MemoryFormat { Contiguous, Preserve };

template <class T> struct RestrictPtrTraits { using PtrType = T* __restrict__; };
template <class T> struct DefaultPtrTraits { using PtrType = T*; };
template <class T, class I, int N> struct SubAccessor {
    T* data_;
    const I *sizes_, *strides_;
    __host__ __device__ I size(int i) const { return sizes_[i]; }
    __host__ __device__ SubAccessor<T, I, N - 1> operator[](I i) const {
        return {data_ + i * strides_[0], sizes_ + 1, strides_ + 1};
    }
};
template <class T, class I> struct SubAccessor<T, I, 1> {
    T* data_;
    const I *sizes_, *strides_;
    __host__ __device__ I size(int i) const { return sizes_[i]; }
    __host__ __device__ T& operator[](I i) const { return data_[i * strides_[0]]; }
};
// The layout that PyTorch's has: pointer, sizes, strides.
template <class T, size_t N, template <class U> class P = DefaultPtrTraits, class I = int64_t>
struct GenericPackedTensorAccessor {
    T* data_;
    I sizes_[N], strides_[N];
    __host__ __device__ I size(int i) const { return sizes_[i]; }
    __host__ __device__ I stride(int i) const { return strides_[i]; }
    __host__ __device__ T* data() const { return data_; }
    __host__ __device__ decltype(auto) operator[](I i) const {
        if constexpr (N == 1) return (data_[i * strides_[0]]);
        else return SubAccessor<T, I, int(N) - 1>{data_ + i * strides_[0], sizes_ + 1, strides_ + 1};
    }
};
template <class T, size_t N, template <class U> class P = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, P, int32_t>;
template <class T, size_t N, template <class U> class P = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, P, int64_t>;

struct IndexAny {  // an index of any kind: the recorder takes a view of all
    template <class T> IndexAny(T&&) {}
};
class Tensor {
   public:
    std::shared_ptr<cubridge::Memory> memory;
    int64_t offset = 0;  // elements
    std::vector<int64_t> shape, steps;
    ScalarType type = ScalarType::Undefined;
    bool on_cuda = true;

    Tensor() = default;
    static Tensor make(std::vector<int64_t> shape, TensorOptions o, const std::string& fill) {
        Tensor t;
        t.shape = std::move(shape), t.type = o.type_, t.on_cuda = o.device_.is_cuda();
        t.steps = dense(t.shape);
        t.memory = cubridge::allocate(t.numel() * elementSize(t.type), toString(t.type), fill);
        if (fill == "0") std::memset(t.memory->data, 0, t.memory->bytes);
        return t;
    }
    static std::vector<int64_t> dense(const std::vector<int64_t>& shape) {
        std::vector<int64_t> steps(shape.size(), 1);
        for (int i = int(shape.size()) - 2; i >= 0; --i) steps[i] = steps[i + 1] * std::max<int64_t>(shape[i + 1], 1);
        return steps;
    }
    int64_t axis(int64_t i) const {
        int64_t n = i < 0 ? i + dim() : i;
        if (n < 0 || n >= dim())
            throw std::out_of_range("dimension " + std::to_string(i) + " of a tensor of " + std::to_string(dim()));
        return n;
    }
    bool defined() const { return bool(memory); }
    int64_t dim() const { return int64_t(shape.size()); }
    int64_t ndimension() const { return dim(); }
    int64_t size(int64_t i) const { return shape[axis(i)]; }
    int64_t stride(int64_t i) const { return steps[axis(i)]; }
    IntArrayRef sizes() const { return shape; }
    IntArrayRef strides() const { return steps; }
    int64_t numel() const {
        int64_t n = 1;
        for (auto s : shape) n *= s;
        return n;
    }
    size_t element_size() const { return elementSize(type); }
    size_t itemsize() const { return elementSize(type); }
    size_t nbytes() const { return numel() * elementSize(type); }
    ScalarType scalar_type() const { return type; }
    ScalarType dtype() const { return type; }
    TensorOptions options() const { return TensorOptions(type).device(device()); }
    Device device() const { return Device(on_cuda ? DeviceType::CUDA : DeviceType::CPU); }
    int get_device() const { return 0; }
    int get_device_index() const { return 0; }
    bool is_cuda() const { return on_cuda; }
    bool is_cpu() const { return !on_cuda; }
    bool is_sparse() const { return false; }
    bool requires_grad() const { return false; }
    bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const {
        int64_t step = 1;
        for (int i = int(shape.size()) - 1; i >= 0; --i) {
            if (shape[i] > 1 && steps[i] != step) return false;
            step *= shape[i];
        }
        return true;
    }
    void* data_ptr() const { return memory ? static_cast<char*>(memory->data) + offset * element_size() : nullptr; }
    template <class T> T* data_ptr() const { return static_cast<T*>(data_ptr()); }
    template <class T> T* data() const { return data_ptr<T>(); }
    const void* const_data_ptr() const { return data_ptr(); }
    template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
    void* mutable_data_ptr() const { return data_ptr(); }
    template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
    template <class T> T item() const { return memory ? *data_ptr<T>() : T(); }
    template <class T, size_t N, template <class U> class P = DefaultPtrTraits, class I = int64_t>
    GenericPackedTensorAccessor<T, N, P, I> generic_packed_accessor() const {
        GenericPackedTensorAccessor<T, N, P, I> a{data_ptr<T>(), {}, {}};
        if (dim() != int64_t(N)) throw std::runtime_error("an accessor of another number of dimensions");
        for (size_t i = 0; i < N; ++i) a.sizes_[i] = I(shape[i]), a.strides_[i] = I(steps[i]);
        return a;
    }
    template <class T, size_t N, template <class U> class P = DefaultPtrTraits> auto packed_accessor32() const {
        return generic_packed_accessor<T, N, P, int32_t>();
    }
    template <class T, size_t N, template <class U> class P = DefaultPtrTraits> auto packed_accessor64() const {
        return generic_packed_accessor<T, N, P, int64_t>();
    }
    template <class T, size_t N, template <class U> class P = DefaultPtrTraits, class I = int64_t>
    auto packed_accessor() const {
        return generic_packed_accessor<T, N, P, I>();
    }

    // A copy is new memory whose contents the recorder does not know; a view is the same memory.
    Tensor copy_as(ScalarType t) const { return make(shape, TensorOptions(t).device(device()), "copy"); }
    Tensor contiguous(MemoryFormat = MemoryFormat::Contiguous) const {
        return is_contiguous() ? *this : copy_as(type);
    }
    Tensor clone() const { return copy_as(type); }
    Tensor detach() const { return *this; }
    Tensor to(ScalarType t) const { return t == type ? *this : copy_as(t); }
    Tensor to(const TensorOptions& o) const { return to(o.type_); }
    Tensor to(Device) const { return *this; }
    Tensor to(DeviceType) const { return *this; }
    Tensor toType(ScalarType t) const { return to(t); }
    Tensor cuda() const { return *this; }
    Tensor half() const { return to(ScalarType::Half); }
    Tensor bfloat16() const { return to(ScalarType::BFloat16); }
    Tensor view_as_shape(std::vector<int64_t> s) const {
        int64_t known = 1, open = -1;
        for (size_t i = 0; i < s.size(); ++i)
            if (s[i] == -1) open = int64_t(i);
            else known *= s[i];
        if (open >= 0) s[open] = known ? numel() / known : 0;
        Tensor t = is_contiguous() ? *this : copy_as(type);
        t.shape = s, t.steps = dense(s);
        if (t.numel() != numel()) throw std::runtime_error("a view of another number of elements");
        return t;
    }
    Tensor view(IntArrayRef s) const { return view_as_shape(s.vec()); }
    Tensor reshape(IntArrayRef s) const { return view_as_shape(s.vec()); }
    Tensor flatten(int64_t a = 0, int64_t b = -1) const {
        std::vector<int64_t> s(shape.begin(), shape.begin() + axis(a));
        int64_t n = 1;
        for (int64_t i = axis(a); i <= axis(b); ++i) n *= shape[i];
        s.push_back(n);
        s.insert(s.end(), shape.begin() + axis(b) + 1, shape.end());
        return view_as_shape(s);
    }
    Tensor transpose(int64_t a, int64_t b) const {
        Tensor t = *this;
        std::swap(t.shape[axis(a)], t.shape[axis(b)]);
        std::swap(t.steps[axis(a)], t.steps[axis(b)]);
        return t;
    }
    Tensor permute(IntArrayRef order) const {
        Tensor t = *this;
        for (size_t i = 0; i < order.size(); ++i) t.shape[i] = size(order[i]), t.steps[i] = stride(order[i]);
        return t;
    }
    Tensor unsqueeze(int64_t at) const {
        Tensor t = *this;
        int64_t i = at < 0 ? at + dim() + 1 : at;
        t.shape.insert(t.shape.begin() + i, 1);
        t.steps.insert(t.steps.begin() + i, 1);
        return t;
    }
    Tensor squeeze(int64_t at) const {
        Tensor t = *this;
        if (size(at) != 1) return t;
        int64_t i = axis(at);
        t.shape.erase(t.shape.begin() + i);
        t.steps.erase(t.steps.begin() + i);
        return t;
    }
    Tensor expand(IntArrayRef s) const {
        Tensor t = *this;
        for (size_t i = 0; i < s.size() && i < shape.size(); ++i)
            if (shape[i] == 1 && s[i] != 1 && s[i] != -1) t.shape[i] = s[i], t.steps[i] = 0;
        return t;
    }
    Tensor narrow(int64_t at, int64_t from, int64_t length) const {
        Tensor t = *this;
        t.offset += from * stride(at), t.shape[axis(at)] = length;
        return t;
    }
    Tensor slice(int64_t at, int64_t from, int64_t to) const { return narrow(at, from, std::min(to, size(at)) - from); }
    Tensor select(int64_t at, int64_t index) const {
        Tensor t = *this;
        t.offset += index * stride(at);
        t.shape.erase(t.shape.begin() + axis(at));
        t.steps.erase(t.steps.begin() + axis(at));
        return t;
    }
    template <class... A> Tensor index(A&&...) const { return *this; }
    Tensor index(std::initializer_list<IndexAny>) const { return *this; }
    Tensor operator[](int64_t i) const { return select(0, i); }
    Tensor& fill_with(const std::string& what) {
        if (memory) memory->fill = what;
        return *this;
    }
    Tensor& zero_() { return fill_with("0"); }
    Tensor& fill_(Scalar s) { return fill_with(std::to_string(s.value)); }
    Tensor& copy_(const Tensor&, bool = false) { return fill_with("copy"); }
    const Tensor& copy_(const Tensor&, bool = false) const { return *this; }
    Tensor operator*(Scalar) const { return copy_as(type); }
    Tensor operator/(Scalar) const { return copy_as(type); }
    Tensor operator+(const Tensor&) const { return copy_as(type); }
};
#define CUBRIDGE_MAKER(NAME, FILL)                                                                            \
    inline Tensor NAME(IntArrayRef s, TensorOptions o = {}) { return Tensor::make(s.vec(), o, FILL); }        \
    inline Tensor NAME##_like(const Tensor& t) { return Tensor::make(t.shape, t.options(), FILL); }           \
    inline Tensor NAME##_like(const Tensor& t, TensorOptions o) { return Tensor::make(t.shape, o, FILL); }
CUBRIDGE_MAKER(empty, "") CUBRIDGE_MAKER(zeros, "0") CUBRIDGE_MAKER(ones, "1") CUBRIDGE_MAKER(rand, "copy")
CUBRIDGE_MAKER(randn, "copy")
#undef CUBRIDGE_MAKER
inline std::string fill_text(Scalar s) { std::ostringstream out; out << s.value; return out.str(); }
inline Tensor full(IntArrayRef s, Scalar x, TensorOptions o = {}) { return Tensor::make(s.vec(), o, fill_text(x)); }
inline Tensor full_like(const Tensor& t, Scalar x) { return Tensor::make(t.shape, t.options(), fill_text(x)); }
inline Tensor arange(Scalar n, TensorOptions o = {}) { return Tensor::make({int64_t(n.value)}, o, "copy"); }
inline Tensor pad(const Tensor& t, IntArrayRef) { return t.clone(); }
using TensorList = ArrayRef<Tensor>;
constexpr ScalarType kByte = ScalarType::Byte, kChar = ScalarType::Char, kShort = ScalarType::Short,
                     kInt = ScalarType::Int, kLong = ScalarType::Long, kHalf = ScalarType::Half,
                     kFloat = ScalarType::Float, kDouble = ScalarType::Double, kBool = ScalarType::Bool,
                     kBFloat16 = ScalarType::BFloat16, kUInt8 = kByte, kInt8 = kChar, kInt32 = kInt, kInt64 = kLong,
                     kFloat16 = kHalf, kFloat32 = kFloat, kFloat64 = kDouble;
constexpr DeviceType kCUDA = DeviceType::CUDA, kCPU = DeviceType::CPU;
struct Generator {};
struct CUDAGeneratorImpl {
    std::mutex mutex_;
    PhiloxCudaState philox_cuda_state(uint64_t) { return {}; }
};
template <class T, class... A> T* get_generator_or_default(A&&...) {
    static T one;
    return &one;
}
inline Tensor reshape(const Tensor& t, IntArrayRef s) { return t.reshape(s); }
inline Tensor& sum_out(Tensor& t, const Tensor&, IntArrayRef) { return t.fill_with("copy"); }
inline Tensor cat(const std::vector<Tensor>& v, int64_t = 0) { return v.at(0).clone(); }
}  // namespace at

namespace c10 {
namespace cuda {
struct CUDAStream {
    cudaStream_t stream() const { return nullptr; }
    operator cudaStream_t() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream(int = 0) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = 0) { return {}; }
struct CUDAGuard {
    template <class T> explicit CUDAGuard(T&&) {}
};
struct OptionalCUDAGuard {
    template <class... T> explicit OptionalCUDAGuard(T&&...) {}
};
}  // namespace cuda
}  // namespace c10
namespace at {
inline Device device_of(const Tensor& t) { return t.device(); }
struct DeviceGuard {
    template <class T> explicit DeviceGuard(T&&) {}
};
namespace cuda {
using namespace c10::cuda;
inline cudaDeviceProp* getCurrentDeviceProperties() {
    static cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    return &p;
}
namespace detail {
inline Generator getDefaultCUDAGenerator(int = 0) { return {}; }
}  // namespace detail
inline cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
}  // namespace cuda
}  // namespace at
namespace torch {
using namespace at;
using Dtype = at::ScalarType;
using at::Device;
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions device(Device d) { return TensorOptions(d); }
template <class T> Tensor tensor(std::initializer_list<T> v, TensorOptions o = {}) {
    return Tensor::make({int64_t(v.size())}, o, "copy");
}
inline Tensor from_blob(void*, IntArrayRef s, TensorOptions o = {}) { return Tensor::make(s.vec(), o, "copy"); }
namespace indexing {
struct NoneType {};
constexpr NoneType None{};
struct Slice {
    template <class... T> Slice(T&&...) {}
};
}  // namespace indexing
namespace nn {
namespace functional {
struct PadFuncOptions {
    PadFuncOptions(std::vector<int64_t>) {}
};
inline Tensor pad(const Tensor& t, PadFuncOptions) { return t.clone(); }
}  // namespace functional
}  // namespace nn
}  // namespace torch

namespace cubridge {
template <class... A> std::string text_of(A&&... parts) {
    std::ostringstream out;
    ((out << parts), ...);
    return out.str();
}
}  // namespace cubridge
#define TORCH_CHECK(COND, ...) \
    do { if (!(COND)) throw std::runtime_error(cubridge::text_of("" __VA_OPT__(, ) __VA_ARGS__)); } while (0)
#define TORCH_CHECK_EQ(A, B) TORCH_CHECK((A) == (B), #A " == " #B)
#define TORCH_INTERNAL_ASSERT(...) TORCH_CHECK(__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define TORCH_WARN(...)
#define TORCH_WARN_ONCE(...)
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT(...) TORCH_CHECK(__VA_ARGS__)
#define AT_ERROR(...) TORCH_CHECK(false, __VA_ARGS__)
#define CHECK_CUDA_ERROR(...) (void)(__VA_ARGS__)
#define C10_CUDA_CHECK(...) (void)(__VA_ARGS__)
#define AT_CUDA_CHECK(...) (void)(__VA_ARGS__)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() (void)0
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_LAUNCH_BOUNDS_1(N) __launch_bounds__(N)

// Dispatch over the types that attention is written for; double is left out, since it would be one more instance.
#define AT_PRIVATE_CASE(ENUM, TYPE, ...) \
    case ENUM: { using scalar_t = TYPE; return __VA_ARGS__(); }
#define AT_DISPATCH_CASE(ENUM, ...) \
    case ENUM: { using scalar_t = typename cubridge_type<ENUM>::type; return __VA_ARGS__(); }
template <at::ScalarType> struct cubridge_type { using type = float; };
template <> struct cubridge_type<at::ScalarType::Half> { using type = __half; };
template <> struct cubridge_type<at::ScalarType::BFloat16> { using type = __nv_bfloat16; };
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...)                                              \
    [&] {                                                                                \
        switch (TYPE) {                                                                  \
            __VA_ARGS__                                                                  \
            default: throw std::runtime_error(std::string(NAME) + ": not for this dtype"); \
        }                                                                                \
    }()
#define CUBRIDGE_FLOAT(...) AT_PRIVATE_CASE(at::ScalarType::Float, float, __VA_ARGS__)
#define CUBRIDGE_HALF(...) AT_PRIVATE_CASE(at::ScalarType::Half, __half, __VA_ARGS__)
#define CUBRIDGE_BF16(...) AT_PRIVATE_CASE(at::ScalarType::BFloat16, __nv_bfloat16, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) AT_DISPATCH_SWITCH(TYPE, NAME, CUBRIDGE_FLOAT(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
    AT_DISPATCH_SWITCH(TYPE, NAME, CUBRIDGE_FLOAT(__VA_ARGS__) CUBRIDGE_HALF(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(T1, TYPE, NAME, ...) \
    AT_DISPATCH_SWITCH(TYPE, NAME, CUBRIDGE_FLOAT(__VA_ARGS__) AT_DISPATCH_CASE(T1, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(T1, T2, TYPE, NAME, ...) \
    AT_DISPATCH_SWITCH(                                          \
        TYPE, NAME,                                              \
        CUBRIDGE_FLOAT(__VA_ARGS__) AT_DISPATCH_CASE(T1, __VA_ARGS__) AT_DISPATCH_CASE(T2, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) \
    AT_DISPATCH_SWITCH(TYPE, NAME, CUBRIDGE_HALF(__VA_ARGS__) CUBRIDGE_BF16(__VA_ARGS__))

// ---- registration: a module's functions become launchers that the recorder can call by name
namespace cubridge {
struct Module;
template <class F> void add_launcher(const std::string& name, F f);
struct Module {
    std::string doc_;
    std::string& doc() { return doc_; }
    template <class F, class... Rest> Module& def(const char* name, F&& f, Rest&&...) {
        add(name, std::forward<F>(f));
        return *this;
    }
    template <class F> Module& impl(const char* name, F&& f) { return def(name, std::forward<F>(f)); }
    template <class K, class F> Module& impl(const char* name, K, F&& f) { return def(name, std::forward<F>(f)); }
    Module& def(const char*) { return *this; }  // a schema alone
    template <class F> void add(const char* name, F f) {
        if constexpr (std::is_pointer_v<F> && std::is_function_v<std::remove_pointer_t<F>>)
            add_launcher(std::string(name).substr(0, std::string(name).find('(')), f);
    }
    template <class T> T& attr(T& x) { return x; }
};
template <class F> struct AtStart {
    explicit AtStart(F f) {
        Module m;
        f(m);
    }
};
}  // namespace cubridge
namespace pybind11 {
using module_ = cubridge::Module;
using module = cubridge::Module;
struct arg {
    explicit arg(const char*) {}
    template <class T> arg& operator=(T&&) { return *this; }
};
struct none {};
template <class T> struct call_guard {};
struct gil_scoped_release {};
}  // namespace pybind11
namespace py = pybind11;
namespace torch {
using Library = cubridge::Module;
using cubridge::Module;
namespace library = ::cubridge;
namespace autograd {
using variable_list = std::vector<at::Tensor>;
}
}  // namespace torch
#define CUBRIDGE_JOIN2(A, B) A##B
#define CUBRIDGE_JOIN(A, B) CUBRIDGE_JOIN2(A, B)
#define CUBRIDGE_MODULE(M, N)                                                           \
    static void CUBRIDGE_JOIN(cubridge_module_, N)(cubridge::Module&);                  \
    static cubridge::AtStart<void (*)(cubridge::Module&)> CUBRIDGE_JOIN(cubridge_at_, N)( \
        &CUBRIDGE_JOIN(cubridge_module_, N));                                           \
    static void CUBRIDGE_JOIN(cubridge_module_, N)([[maybe_unused]] cubridge::Module & M)
#define PYBIND11_MODULE(NAME, M, ...) CUBRIDGE_MODULE(M, __COUNTER__)
#define TORCH_LIBRARY(NAME, M) CUBRIDGE_MODULE(M, __COUNTER__)
#define TORCH_LIBRARY_FRAGMENT(NAME, M) CUBRIDGE_MODULE(M, __COUNTER__)
#define TORCH_LIBRARY_IMPL(NAME, KEY, M) CUBRIDGE_MODULE(M, __COUNTER__)
#define TORCH_EXTENSION_NAME cubridge_extension
#define TORCH_FN(F) &F
#endif  // __CUDACC_RTC__
