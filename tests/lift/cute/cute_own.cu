// Attention forward in CuTe, small and plain. `// =` names the steps that reading has to find on a line, and no others.
#include <cute/tensor.hpp>
#include <cutlass/numeric_types.h>

using namespace cute;

constexpr int kRows = 64, kKeys = 64, kDim = 64;
constexpr float kLog2e = 1.44269504f;

struct Call {
    const half_t *queries, *keys, *values;  // [B, H or Hkv, S, 64]; Sq and Sk are multiples of 64
    half_t *out;
    float *lse;
    int heads, kv_heads, sq, sk;
    float scale, cap;
};

template <class Fragment>
__device__ auto by_rows(Fragment &&fragment) {  // (4, M, N) -> ((2, M), (2, N))
    auto parts = logical_divide(fragment.layout(), Shape<_2>{});
    auto rows = make_layout(get<0, 1>(parts), get<1>(parts));
    return make_tensor(fragment.data(), make_layout(rows, make_layout(get<0, 0>(parts), get<2>(parts))));
}

template <class Combine>
__device__ float over_quad(float mine, Combine combine) {
    mine = combine(mine, __shfl_xor_sync(0xffffffffu, mine, 1));
    mine = combine(mine, __shfl_xor_sync(0xffffffffu, mine, 2));
    return mine;
}

template <bool kCausal, bool kCapped>
__global__ void __launch_bounds__(128) attend(Call c) {
    __shared__ __align__(16) half_t pool[(kRows + 2 * kKeys) * kDim];
    const int tile = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
    const int own = batch * c.heads + head;
    const int shared_head = batch * c.kv_heads + head / (c.heads / c.kv_heads);

    auto whole = make_stride(Int<kDim>{}, _1{});
    Tensor g_first = local_tile(
        make_tensor(make_gmem_ptr(c.queries + size_t(own) * c.sq * kDim), make_shape(c.sq, Int<kDim>{}), whole),
        Shape<Int<kRows>, Int<kDim>>{}, make_coord(tile, 0));
    Tensor g_second = local_tile(
        make_tensor(make_gmem_ptr(c.keys + size_t(shared_head) * c.sk * kDim), make_shape(c.sk, Int<kDim>{}), whole),
        Shape<Int<kKeys>, Int<kDim>>{}, make_coord(_, 0));
    Tensor g_third = local_tile(
        make_tensor(make_gmem_ptr(c.values + size_t(shared_head) * c.sk * kDim), make_shape(c.sk, Int<kDim>{}), whole),
        Shape<Int<kKeys>, Int<kDim>>{}, make_coord(_, 0));
    Tensor g_out = local_tile(
        make_tensor(make_gmem_ptr(c.out + size_t(own) * c.sq * kDim), make_shape(c.sq, Int<kDim>{}), whole),
        Shape<Int<kRows>, Int<kDim>>{}, make_coord(tile, 0));

    auto plain = Layout<Shape<Int<kKeys>, Int<kDim>>, Stride<Int<kDim>, _1>>{};
    Tensor s_first = make_tensor(make_smem_ptr(pool), plain);
    Tensor s_second = make_tensor(make_smem_ptr(pool + kRows * kDim), plain);
    Tensor s_third = make_tensor(make_smem_ptr(pool + (kRows + kKeys) * kDim), plain);
    Tensor turned = make_tensor(s_third.data(), Layout<Shape<Int<kDim>, Int<kKeys>>, Stride<_1, Int<kDim>>>{});

    auto mover = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>, half_t>{},
                                 Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{});
    auto moves = mover.get_slice(threadIdx.x);
    TiledMMA mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_4, _1, _1>>{});
    auto part = mma.get_slice(threadIdx.x);

    Tensor a = part.partition_fragment_A(s_first);
    Tensor b = part.partition_fragment_B(s_second);
    Tensor d = part.partition_fragment_B(turned);
    Tensor sums = partition_fragment_C(mma, Shape<Int<kRows>, Int<kDim>>{});
    Tensor at = by_rows(part.partition_C(make_identity_tensor(Shape<Int<kRows>, Int<kKeys>>{})));
    Tensor sums_by_rows = by_rows(sums);
    Tensor top = make_tensor<float>(size<0>(sums_by_rows));
    Tensor total = make_tensor<float>(size<0>(sums_by_rows));
    clear(sums);
    clear(total);
    fill(top, -INFINITY);

    copy(mover, moves.partition_S(g_first), moves.partition_D(s_first));  // = load_q
    const int last = kCausal ? min(c.sk / kKeys, tile + 1) : c.sk / kKeys;
    for (int step = 0; step < last; ++step) {  // = kv_loop
        copy(mover, moves.partition_S(g_second(_, _, step)), moves.partition_D(s_second));  // = load_k
        copy(mover, moves.partition_S(g_third(_, _, step)), moves.partition_D(s_third));  // = load_v
        cp_async_fence();  // = wait
        cp_async_wait<0>();  // = wait
        __syncthreads();  // = wait
        copy(part.partition_A(s_first), a);  // = load_q
        copy(part.partition_B(s_second), b);  // = load_k
        copy(part.partition_B(turned), d);  // = load_v

        Tensor dots = partition_fragment_C(mma, Shape<Int<kRows>, Int<kKeys>>{});
        clear(dots);
        gemm(mma, a, b, dots);  // = qk
        Tensor grid = by_rows(dots);
        auto larger = [](float x, float y) { return fmaxf(x, y); };
        #pragma unroll
        for (int i = 0; i < size<0>(grid); ++i) {
            #pragma unroll
            for (int j = 0; j < size<1>(grid); ++j) {
                grid(i, j) *= c.scale;  // = scale
                if constexpr (kCapped) {
                    grid(i, j) = c.cap * tanhf(grid(i, j) / c.cap);  // = softcap
                }
                if (kCausal && step * kKeys + get<1>(at(i, j)) > tile * kRows + get<0>(at(i, j))) {
                    grid(i, j) = -INFINITY;  // = mask
                }
            }
            float next = top(i);
            #pragma unroll
            for (int j = 0; j < size<1>(grid); ++j) {
                next = larger(next, grid(i, j));  // = row_max
            }
            next = over_quad(next, larger);  // = row_max
            const float shrink = exp2f((top(i) - next) * kLog2e);  // = correction
            total(i) *= shrink;  // = l_rescale
            #pragma unroll
            for (int j = 0; j < size<1>(sums_by_rows); ++j) {
                sums_by_rows(i, j) *= shrink;  // = rescale
            }
            #pragma unroll
            for (int j = 0; j < size<1>(grid); ++j) {
                grid(i, j) = exp2f((grid(i, j) - next) * kLog2e);  // = exp
                total(i) += grid(i, j);  // = row_sum
            }
            top(i) = next;
        }
        Tensor narrow = make_tensor<half_t>(dots.layout());
        #pragma unroll
        for (int n = 0; n < size(dots); ++n) {
            narrow(n) = half_t(dots(n));
        }
        auto halves = logical_divide(narrow.layout(), Shape<Underscore, Underscore, _2>{});
        Tensor left = make_tensor(narrow.data(), make_layout(make_layout(get<0>(halves), get<2, 0>(halves)),
                                                             get<1>(halves), get<2, 1>(halves)));
        gemm(mma, left, d, sums);  // = pv
        __syncthreads();  // = wait
    }

    #pragma unroll
    for (int i = 0; i < size<0>(sums_by_rows); ++i) {
        const float all = over_quad(total(i), [](float x, float y) { return x + y; });  // = row_sum
        const float part_of = 1.0f / all;
        #pragma unroll
        for (int j = 0; j < size<1>(sums_by_rows); ++j) {
            sums_by_rows(i, j) *= part_of;  // = normalise
        }
        if (get<1>(at(i, 0)) == 0) {
            c.lse[size_t(own) * c.sq + tile * kRows + get<0>(at(i, 0))] = top(i) + logf(all);  // = lse
        }
    }
    Tensor written = make_tensor<half_t>(sums.layout());
    #pragma unroll
    for (int n = 0; n < size(sums); ++n) {
        written(n) = half_t(sums(n));
    }
    copy(written, part.partition_C(g_out));  // = store
}

template __global__ void attend<true, false>(Call);
template __global__ void attend<false, true>(Call);
