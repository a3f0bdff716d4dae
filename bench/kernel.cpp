// A trial that trisect does not use (docs/decisions/0117): from products without their biases to softmax less the gold word, one row at a time
// in a core's own cache. Sums run in LANES lanes, so that no -ffast-math is needed; infinities and NaN stay what they are.
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef CLONES
#define WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WIDE
#endif
constexpr int LANES = 64;

// exp of x <= 0 by 2^n and a polynomial of degree 6 (error about 1 unit in the last place); below -87 it is exp(-87)
static inline __attribute__((always_inline)) float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

// z [rows, words]; bias, sums [words]; gold, loss, right [rows]
extern "C" WIDE void scores(float *z, const float *bias, const int64_t *gold, long rows, long words, float *loss, uint8_t *right, float *sums) {
  for (long i = 0; i < rows; i++) {
    float *row = z + i * words, most[LANES], total[LANES];
    for (int k = 0; k < LANES; k++) most[k] = -INFINITY, total[k] = 0;
    const long whole = words / LANES * LANES;
    for (long j = 0; j < whole; j += LANES)
      for (int k = 0; k < LANES; k++) {
        const float value = row[j + k] + bias[j + k];
        row[j + k] = value;
        most[k] = value > most[k] ? value : most[k];
      }
    for (long j = whole; j < words; j++) {
      row[j] += bias[j];
      most[0] = row[j] > most[0] ? row[j] : most[0];
    }
    float top = most[0], sum = 0;
    for (int k = 1; k < LANES; k++) top = most[k] > top ? most[k] : top;
    const float own = row[gold[i]];
    for (long j = 0; j < whole; j += LANES)
      for (int k = 0; k < LANES; k++) {
        const float value = exponential(row[j + k] - top);
        row[j + k] = value;
        total[k] += value;
      }
    for (long j = whole; j < words; j++) {
      row[j] = exponential(row[j] - top);
      sum += row[j];
    }
    for (int k = 0; k < LANES; k++) sum += total[k];
    loss[i] = top + std::log(sum) - own;
    right[i] = own == top;
    const float scale = 1.0f / sum;
    for (long j = 0; j < words; j++) {
      row[j] *= scale;
      sums[j] += row[j];
    }
    row[gold[i]] -= 1.0f;
    sums[gold[i]] -= 1.0f;
  }
}
