"""Headers that NVRTC lacks and kernels include: the parts of them that mean something in device code.

Given these as in-memory headers, a kernel that includes <stdint.h> or <cfloat> compiles as it is.
"""

from __future__ import annotations

_STDINT = """
#pragma once
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef long long intptr_t; typedef unsigned long long uintptr_t;
#define INT32_MAX 2147483647
#define INT32_MIN (-2147483647 - 1)
#define UINT32_MAX 4294967295u
#define INT64_MAX 9223372036854775807LL
"""
_FLOAT = """
#pragma once
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623158e+308
"""
_LIMITS = """
#pragma once
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807LL
"""
_MATH = """
#pragma once
#define M_PI 3.14159265358979323846
#define M_LOG2E 1.44269504088896340736
#define M_LN2 0.69314718055994530942
"""
_TYPE_TRAITS = """
#pragma once
namespace std {
template <class T, T v> struct integral_constant { static constexpr T value = v; };
using true_type = integral_constant<bool, true>; using false_type = integral_constant<bool, false>;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool c, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
template <bool c, class A, class B> using conditional_t = typename conditional<c, A, B>::type;
template <bool c, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool c, class T = void> using enable_if_t = typename enable_if<c, T>::type;
}
"""
_EMPTY = "#pragma once\n"

HEADERS: dict[str, str] = {
    "stdint.h": _STDINT,
    "cstdint": _STDINT + "namespace std { using ::int32_t; using ::uint32_t; using ::int64_t; using ::uint64_t; }\n",
    "float.h": _FLOAT,
    "cfloat": _FLOAT,
    "limits.h": _LIMITS,
    "climits": _LIMITS,
    "math.h": _MATH,
    "cmath": _MATH,
    "type_traits": _TYPE_TRAITS,
    # Declared by NVRTC itself, or of no use on the device.
    **dict.fromkeys(
        (
            "stddef.h", "cstddef", "stdio.h", "cstdio", "stdlib.h", "cstdlib", "string.h", "cstring", "assert.h",
            "cassert", "cuda_runtime.h", "cuda.h", "cuda_runtime_api.h", "device_launch_parameters.h",
        ),
        _EMPTY,
    ),
}  # fmt: skip

# Names that <math.h> gives every file nvcc compiles. Used only where the user's file does not define them.
DEFINES = {"INFINITY": "__int_as_float(0x7f800000)", "NAN": "__int_as_float(0x7fffffff)"}
