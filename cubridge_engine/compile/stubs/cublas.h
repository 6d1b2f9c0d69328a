// Stands in for cublas_v2.h where a file is compiled without it: the names that host code in headers uses. Nothing here
// computes; device code has no use for any of it.
#pragma once
#include <cuda_runtime.h>
#include <library_types.h>

typedef struct cublasContext *cublasHandle_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef enum {
    CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_INITIALIZED = 1, CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_ARCH_MISMATCH = 8, CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13, CUBLAS_STATUS_INTERNAL_ERROR = 14, CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_STATUS_LICENSE_ERROR = 16
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 } cublasGemmAlgo_t;
typedef enum {
    CUBLAS_DEFAULT_MATH = 0, CUBLAS_TENSOR_OP_MATH = 1, CUBLAS_TF32_TENSOR_OP_MATH = 3, CUBLAS_PEDANTIC_MATH = 2
} cublasMath_t;
typedef enum {
    CUBLAS_COMPUTE_16F = 64, CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77, CUBLAS_COMPUTE_64F = 70, CUBLAS_COMPUTE_32I = 72
} cublasComputeType_t;

#define CUBRIDGE_CUBLAS(name) \
    template <class... Arguments> inline cublasStatus_t name(Arguments...) { return CUBLAS_STATUS_SUCCESS; }
CUBRIDGE_CUBLAS(cublasCreate)
CUBRIDGE_CUBLAS(cublasDestroy)
CUBRIDGE_CUBLAS(cublasSetStream)
CUBRIDGE_CUBLAS(cublasSetMathMode)
CUBRIDGE_CUBLAS(cublasSgemm)
CUBRIDGE_CUBLAS(cublasHgemm)
CUBRIDGE_CUBLAS(cublasGemmEx)
CUBRIDGE_CUBLAS(cublasGemmBatchedEx)
CUBRIDGE_CUBLAS(cublasGemmStridedBatchedEx)
CUBRIDGE_CUBLAS(cublasSgemmStridedBatched)
#undef CUBRIDGE_CUBLAS
inline const char *cublasGetStatusString(cublasStatus_t) { return "cuBLAS is not here"; }
inline const char *cublasGetStatusName(cublasStatus_t) { return "cuBLAS is not here"; }
